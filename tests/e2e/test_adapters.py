"""Changes to weights: adapters of PEFT merged (what its own formulas give), vocabularies resized (as transformers does)."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from support import trireme

RANK, ALPHA = 3, 7.0


def llama():
    return LlamaForCausalLM(LlamaConfig(vocab_size=61, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
                                        num_key_value_heads=2, intermediate_size=20))


def gpt2():
    return GPT2LMHeadModel(GPT2Config(vocab_size=61, n_embd=24, n_layer=2, n_head=2, n_positions=16))


def build(tmp_path, model, ends, config, dora=False, turned=False):
    """Writes the model and an adapter of random matrices; returns the merged weights."""
    torch.manual_seed(3)
    model.save_pretrained(tmp_path / "base")
    want, stored = load_file(tmp_path / "base/model.safetensors"), {}
    for name in [n for n in want if n.endswith(tuple(f"{end}.weight" for end in ends))]:
        weight = want[name].T if turned else want[name]
        down, up = torch.randn(RANK, weight.shape[1]), torch.randn(weight.shape[0], RANK)
        module = "base_model.model." + name.removesuffix(".weight")
        stored |= {module + ".lora_A.weight": down, module + ".lora_B.weight": up}
        alpha = 2.0 if name.endswith("layers.1.self_attn.q_proj.weight") and "alpha_pattern" in config else ALPHA
        sum_ = weight + up @ down * (alpha / math.sqrt(RANK) if config.get("use_rslora") else alpha / RANK)
        if dora:
            stored[module + ".lora_magnitude_vector"] = size = torch.rand(weight.shape[0])
            sum_ = sum_ * (size / sum_.norm(dim=1))[:, None]
        want[name] = sum_.T if turned else sum_
    (tmp_path / "adapter").mkdir()
    save_file(stored, tmp_path / "adapter/adapter_model.safetensors")
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none", "fan_in_fan_out": turned} | config))
    return want


def merge(tmp_path, **options):
    return trireme("ckpt", "merge", tmp_path / "base", tmp_path / "merged", "--adapter", tmp_path / "adapter", **options)


@pytest.mark.parametrize("case", ["lora", "rank_stabilised", "dora", "gpt2"])
def test_merged(case, tmp_path):
    want = {
        "lora": lambda: build(tmp_path, llama(), ["q_proj", "v_proj"], {"alpha_pattern": {"layers.1.self_attn.q_proj": 2.0}}),
        "rank_stabilised": lambda: build(tmp_path, llama(), ["k_proj", "down_proj"], {"use_rslora": True}),
        "dora": lambda: build(tmp_path, llama(), ["q_proj", "gate_proj"], {"use_dora": True}, dora=True),
        "gpt2": lambda: build(tmp_path, gpt2(), ["attn.c_attn"], {}, turned=True),
    }[case]()
    merge(tmp_path)
    got = load_file(tmp_path / "merged/model.safetensors")
    assert got.keys() == want.keys()
    for name in want:
        assert torch.allclose(got[name], want[name], rtol=1e-5, atol=1e-6), name
    type(llama() if case != "gpt2" else gpt2()).from_pretrained(tmp_path / "merged")


def test_modules_trained_whole(tmp_path):
    want = build(tmp_path, llama(), ["q_proj"], {})
    stored = load_file(tmp_path / "adapter/adapter_model.safetensors")
    stored["base_model.model.lm_head.weight"] = head = torch.randn_like(want["lm_head.weight"])
    save_file(stored, tmp_path / "adapter/adapter_model.safetensors")
    merge(tmp_path)
    assert torch.equal(load_file(tmp_path / "merged/model.safetensors")["lm_head.weight"], head)


@pytest.mark.parametrize("change,words", [
    ({"peft_type": "IA3"}, ["IA3", "LORA"]),
    ({"bias": "all"}, ["bias", "none"]),
])
def test_refuses_other_kinds(change, words, tmp_path):
    build(tmp_path, llama(), ["q_proj"], change)
    said = merge(tmp_path, code=2).stderr
    assert all(word in said for word in words) and not (tmp_path / "merged").exists()


def test_refuses_another_models_adapter(tmp_path):
    build(tmp_path, llama(), ["q_proj"], {})
    stored = load_file(tmp_path / "adapter/adapter_model.safetensors")
    save_file({k.replace("layers.1", "layers.9"): v for k, v in stored.items()}, tmp_path / "adapter/adapter_model.safetensors")
    said = merge(tmp_path, code=2).stderr
    assert "layers.9" in said and not (tmp_path / "merged").exists()
    save_file({k: v[:, :-1].contiguous() if "lora_A" in k else v for k, v in stored.items()},
              tmp_path / "adapter/adapter_model.safetensors")
    assert "does not fit" in merge(tmp_path, code=2).stderr


def test_refuses_a_vocabulary_of_a_split_checkpoint(tmp_path):
    llama().save_pretrained(tmp_path / "base")
    said = trireme("ckpt", "convert", tmp_path / "base", tmp_path / "x", "--to", "split", "--vocab-size", 70, code=2).stderr
    assert "--to hf" in said
