"""Checkpoints between trireme, the Python package safetensors and transformers."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

from support import trireme


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt2")
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(n_layer=3, n_embd=24, n_head=2, n_positions=32, vocab_size=131,
                                       bos_token_id=0, eos_token_id=0)).eval()
    model.save_pretrained(folder / "one")
    model.save_pretrained(folder / "shards", max_shard_size="40KB")
    assert len(list((folder / "shards").glob("model-*"))) > 2
    return folder, model


def logits(model):
    with torch.no_grad():
        return model(torch.arange(30).reshape(2, 15)).logits


@pytest.mark.parametrize("source", ["one", "shards"])
def test_hugging_face_there_and_back(gpt2, tmp_path, source):
    folder, model = gpt2
    trireme("ckpt", "convert", folder / source, tmp_path / "split", "--to", "split", "--tensor-parallel", 2,
            "--pipeline-parallel", 2)
    assert trireme("ckpt", "verify", tmp_path / "split", "--json").stdout
    seen = json.loads(trireme("ckpt", "inspect", tmp_path / "split", "--json").stdout)
    assert seen["layout"] == {"dp": 1, "tp": 2, "pp": 2}
    assert seen["parameters"] == sum(p.numel() for p in model.parameters())
    trireme("ckpt", "merge", tmp_path / "split", tmp_path / "hf")
    again = GPT2LMHeadModel.from_pretrained(tmp_path / "hf").eval()
    assert torch.equal(logits(again), logits(model))
    assert json.loads(trireme("ckpt", "diff", folder / "one", tmp_path / "hf", "--json").stdout) == {
        "equal": True, "max_abs": 0.0, "max_rel": 0.0, "tensors": []}
    if source == "one":  # the same bytes as the Python package writes
        assert (tmp_path / "hf/model.safetensors").read_bytes() == (folder / "one/model.safetensors").read_bytes()


def test_older_files(gpt2, tmp_path):
    """No prefix, the mask buffers, the tied head stored again: as the hub's GPT-2 files."""
    folder, model = gpt2
    tensors = {name.removeprefix("transformer."): t.clone() for name, t in model.state_dict().items()}
    tensors |= {f"h.{i}.attn.bias": torch.ones(1, 1, 32, 32) for i in range(3)}
    tensors |= {f"h.{i}.attn.masked_bias": torch.tensor(-1e4) for i in range(3)}
    (tmp_path / "old").mkdir()
    save_file(tensors, tmp_path / "old/model.safetensors")
    (tmp_path / "old/config.json").write_text((folder / "one/config.json").read_text())
    trireme("ckpt", "diff", folder / "one", tmp_path / "old")
    trireme("ckpt", "convert", tmp_path / "old", tmp_path / "bf16", "--to", "hf", "--dtype", "bf16")
    got = load_file(tmp_path / "bf16/model.safetensors")
    want = {name: t.to(torch.bfloat16) for name, t in model.state_dict().items() if name != "lm_head.weight"}
    assert got.keys() == want.keys() and all(torch.equal(got[name], want[name]) for name in want)
    assert GPT2LMHeadModel.from_pretrained(tmp_path / "bf16").dtype == torch.bfloat16


def test_refusals(gpt2, tmp_path):
    folder, _ = gpt2
    split = tmp_path / "split"
    trireme("ckpt", "convert", folder / "one", split, "--to", "split")
    assert "exists already" in trireme("ckpt", "convert", folder / "one", split, "--to", "split", code=2).stderr
    trireme("ckpt", "convert", folder / "one", tmp_path / "x", "--to", "split", "--pipeline-parallel", 4, code=2)
    trireme("ckpt", "convert", folder / "one", tmp_path / "x", "--to", "split", "--tensor-parallel", 3, code=2)
    trireme("ckpt", "convert", folder / "one", tmp_path / "x", "--to", "elsewhere", code=2)
    trireme("ckpt", "inspect", tmp_path / "none", code=2)
    tensors = load_file(folder / "one/model.safetensors")
    tensors["transformer.ln_f.bias"][3] += 0.5
    (tmp_path / "moved").mkdir()
    save_file(tensors, tmp_path / "moved/model.safetensors")
    (tmp_path / "moved/config.json").write_text((folder / "one/config.json").read_text())
    said = json.loads(trireme("ckpt", "diff", folder / "one", tmp_path / "moved", "--json", code=1).stdout)
    assert not said["equal"] and said["max_abs"] == 0.5 and [t["name"] for t in said["tensors"]] == ["transformer.ln_f.bias"]
    part = split / "model_rank_00000.safetensors"
    content = bytearray(part.read_bytes())
    content[-5] ^= 4
    part.write_bytes(content)
    said = trireme("ckpt", "verify", split, code=2).stderr
    assert part.name in said and "checksum" in said
    assert sorted(p.name for p in tmp_path.iterdir()) == ["moved", "split"]
