"""Checkpoints between trireme, the Python package safetensors and transformers."""

import json
import os

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


@pytest.mark.parametrize("tp,pp", [(1, 1), (2, 2), (1, 3), (2, 1)])
def test_oslo_there_and_back(gpt2, tmp_path, tp, pp):
    folder, model = gpt2
    trireme("ckpt", "convert", folder / "one", tmp_path / "oslo", "--to", "oslo", "--tensor-parallel", tp,
            "--pipeline-parallel", pp)
    blocks = set()
    for stage in range(pp):
        for rank in range(tp):
            part = torch.load(tmp_path / f"oslo/pytorch_model_tp={rank}_pp={stage}.bin", weights_only=True)
            assert part["transformer.wte.weight"].shape[0] == (66 if rank == 0 else 65) if tp == 2 and stage == 0 else True
            blocks |= {(stage, name.split(".")[2]) for name in part if ".h." in name}
    assert len(blocks) == 3  # each block in one stage
    trireme("ckpt", "convert", tmp_path / "oslo", tmp_path / "hf", "--to", "hf")
    assert json.loads(trireme("ckpt", "diff", folder / "one", tmp_path / "hf", "--json").stdout)["equal"]
    (tmp_path / f"oslo/pytorch_model_tp={tp - 1}_pp={pp - 1}.bin").write_bytes(b"PK")
    trireme("ckpt", "convert", tmp_path / "oslo", tmp_path / "x", "--to", "hf", code=2)


def test_files_of_torch_save(gpt2, tmp_path):
    """State dicts as PyTorch writes them: parameters, strides, shared storages, attributes of the map."""
    folder, model = gpt2
    state = model.state_dict()
    state["transformer.wpe.weight"] = state["transformer.wpe.weight"].t().contiguous().t()
    wide = torch.randn(200, 48)
    wide[:131, 10:34] = state["transformer.wte.weight"]
    state["lm_head.weight"] = state["transformer.wte.weight"] = wide[:131, 10:34]
    state["transformer.ln_f.weight"] = torch.nn.Parameter(state["transformer.ln_f.weight"])
    for protocol in (2, 4):
        (tmp_path / f"p{protocol}").mkdir()
        torch.save(state, tmp_path / f"p{protocol}/pytorch_model.bin", pickle_protocol=protocol)
        (tmp_path / f"p{protocol}/config.json").write_text((folder / "one/config.json").read_text())
        trireme("ckpt", "diff", folder / "one", tmp_path / f"p{protocol}")


class Hostile:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def test_hostile_pickles(gpt2, tmp_path):
    folder, _ = gpt2
    owned = tmp_path / "owned"
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/config.json").write_text((folder / "one/config.json").read_text())
    for call in (Hostile(os.system, f"touch {owned}"), Hostile(eval, f"open({str(owned)!r}, 'w')"),
                 Hostile(torch.load, "x"), Hostile(exec, "pass")):
        for name in ("transformer.wte.weight", "other"):
            for protocol in (2, 4):
                torch.save({name: call}, tmp_path / "bad/pytorch_model.bin", pickle_protocol=protocol)
                said = trireme("ckpt", "convert", tmp_path / "bad", tmp_path / "x", "--to", "hf", code=2).stderr
                assert "makes no tensor" in said
    torch.save({"transformer.wte.weight": torch.ones(2)}, tmp_path / "bad/pytorch_model.bin",
               _use_new_zipfile_serialization=False)
    assert "zip" in trireme("ckpt", "inspect", tmp_path / "bad", code=2).stderr
    assert not owned.exists() and not (tmp_path / "x").exists()


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
    typed = json.loads((folder / "one/config.json").read_text()) | {"tie_word_embeddings": "yes"}
    (tmp_path / "moved/config.json").write_text(json.dumps(typed))
    said = trireme("ckpt", "inspect", tmp_path / "moved", code=2).stderr
    assert "tie_word_embeddings" in said and "expected true or false" in said
    (tmp_path / "moved/config.json").write_text(json.dumps(typed)[:-1])
    said = trireme("ckpt", "inspect", tmp_path / "moved", code=2).stderr
    assert "moved/config.json:1:" in said and "json.exception" not in said
    (tmp_path / "moved/config.json").write_text(json.dumps(typed | {"tie_word_embeddings": True}))
    (tmp_path / "moved/model.safetensors").unlink()
    said = trireme("ckpt", "inspect", tmp_path / "moved", code=2).stderr
    assert "neither model.safetensors nor model.safetensors.index.json" in said and "ckpt convert" in said
    part = split / "model_rank_00000.safetensors"
    content = bytearray(part.read_bytes())
    content[-5] ^= 4
    part.write_bytes(content)
    said = trireme("ckpt", "verify", split, code=2).stderr
    assert part.name in said and "checksum" in said
    assert sorted(p.name for p in tmp_path.iterdir()) == ["moved", "split"]
