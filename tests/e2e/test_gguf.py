"""GGUF files, written by the gguf package: weights of every type that is read, the tokenizers they carry, what is refused."""

import json
import shutil
import subprocess

import gguf
import numpy
import pytest
import torch
import transformers as hf
from safetensors.numpy import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from support import PROGRAM, json_lines, trireme

TYPE = gguf.GGMLQuantizationType
TEXTS = ["the quick brown fox", " don't\n\nstop  at 12345!", "naïve café 东京 🙂", ""]


def byte_level_bpe():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(["the quick brown fox jumps over the lazy dog " * 20],
                                  trainers.BpeTrainer(vocab_size=285, special_tokens=["<|endoftext|>"],
                                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def add_byte_level(writer, tokenizer, pre):
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if t == "<|endoftext|>" else gguf.TokenType.NORMAL for t in tokens])
    writer.add_token_merges([" ".join(m) if isinstance(m, list) else m for m in model["merges"]])
    writer.add_eos_token_id(0)


def close(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def convert(source, folder, *words, code=0):
    return trireme("ckpt", "convert", source, folder, "--to", "hf", *words, code=code)


def write_gpt2(path, model, tokenizer):
    c = model.config
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_context_length(c.n_positions)
    writer.add_embedding_length(c.n_embd)
    writer.add_block_count(c.n_layer)
    writer.add_feed_forward_length(4 * c.n_embd)
    writer.add_head_count(c.n_head)
    writer.add_layer_norm_eps(c.layer_norm_epsilon)
    add_byte_level(writer, tokenizer, "gpt-2")
    names = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm", "ln_1": "attn_norm", "attn.c_attn": "attn_qkv",
             "attn.c_proj": "attn_output", "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
    for name, value in model.transformer.state_dict().items():
        block, module = name.split(".", 2)[1:] if name.startswith("h.") else (None, name)
        module, kind = module.rsplit(".", 1)
        value = value.numpy()
        if kind == "weight" and ".c_" in name:
            value = value.T.copy()
        prefix = f"blk.{block}." if block else ""
        writer.add_tensor(f"{prefix}{names[module]}.{kind}", value)
    close(writer)


def test_gpt2_with_its_tokenizer(tmp_path):
    tokenizer = byte_level_bpe()
    torch.manual_seed(3)
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=4, n_positions=64, vocab_size=tokenizer.get_vocab_size(),
                                       layer_norm_epsilon=1e-4, bos_token_id=0, eos_token_id=0)).eval()
    write_gpt2(tmp_path / "m.gguf", model, tokenizer)
    convert(tmp_path / "m.gguf", tmp_path / "hf")
    got = GPT2LMHeadModel.from_pretrained(tmp_path / "hf")
    for name, value in model.state_dict().items():
        assert torch.equal(got.state_dict()[name], value), name
    assert got.config.layer_norm_epsilon == pytest.approx(1e-4)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "hf")
    for text in TEXTS:
        assert theirs(text).input_ids == tokenizer.encode(text).ids
        if text and "\n" not in text:
            said = trireme("tokenizer", "encode", "--tokenizer", tmp_path / "hf", "--text", text, "--json").stdout
            assert json_lines(said)[0]["ids"] == tokenizer.encode(text).ids
    ids = torch.tensor([tokenizer.encode(TEXTS[0]).ids])
    want = model.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0)[0, ids.shape[1]:].tolist()
    said = trireme("generate", "--model", tmp_path / "hf", "--prompt", TEXTS[0], "--max-new-tokens", 8, "--greedy", "--json").stdout
    assert json_lines(said)[0]["new_ids"][0] == want[0]


def llama_writer(path, config, tokenizer, arch="llama"):
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(5000.0)
    add_byte_level(writer, tokenizer, "llama-bpe")
    return writer


def interleaved(weight, heads):
    """What the conversion to GGUF does to the rows of queries and keys."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape).copy()


QUANTISED = {"F32": TYPE.F32, "F16": TYPE.F16, "BF16": TYPE.BF16, "Q8_0": TYPE.Q8_0, "Q4_0": TYPE.Q4_0, "Q4_1": TYPE.Q4_1,
             "Q4_K": TYPE.Q4_K, "Q6_K": TYPE.Q6_K}


def quantised(value, kind, rng):
    """Bytes of a tensor and what they stand for, by the gguf package. K types, which it cannot make, are drawn."""
    kind = QUANTISED[kind]
    if kind in (TYPE.Q4_K, TYPE.Q6_K):
        block, size = gguf.GGML_QUANT_SIZES[kind]
        rows = rng.integers(0, 256, (value.shape[0], value.shape[1] // block, size), dtype=numpy.uint8)
        scale = rng.uniform(1e-3, 2e-2, (*rows.shape[:2], 2)).astype(numpy.float16).view(numpy.uint8)
        at = slice(0, 4) if kind == TYPE.Q4_K else slice(208, 210)
        rows[:, :, at] = scale[:, :, : at.stop - at.start]
        data = rows.reshape(value.shape[0], -1)
    else:
        data = gguf.quantize(value, kind)
    return data, kind, gguf.dequantize(data, kind).astype(numpy.float32)


@pytest.mark.parametrize("kind", QUANTISED)
def test_llama_of_every_type(tmp_path, kind):
    tokenizer = byte_level_bpe()
    torch.manual_seed(3)
    config = LlamaConfig(vocab_size=tokenizer.get_vocab_size(), hidden_size=256, intermediate_size=512, num_hidden_layers=1,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-4)
    model = LlamaForCausalLM(config)
    writer, rng, want = llama_writer(tmp_path / "m.gguf", config, tokenizer), numpy.random.default_rng(1), {}
    for name, value in model.state_dict().items():
        module = name.removesuffix(".weight")
        block = "blk.0." if module.startswith("model.layers.0.") else ""
        target = f"{block}{NAMES[module.removeprefix('model.layers.0.')]}.weight"
        heads = {"attn_q": 4, "attn_k": 2}.get(target.split(".")[-2], 0)
        value = value.numpy()
        if value.ndim == 1:
            writer.add_tensor(target, value)
            want[name] = value
            continue
        data, dtype, meant = quantised(interleaved(value, heads) if heads else value, kind, rng)
        writer.add_tensor(target, data, raw_dtype=dtype)
        if heads:  # back to Hugging Face's order
            meant = meant.reshape(heads, meant.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(meant.shape)
        want[name] = meant
        if kind == "F32":
            assert (meant == value).all()
    close(writer)
    convert(tmp_path / "m.gguf", tmp_path / "hf")
    got = load_file(tmp_path / "hf/model.safetensors")
    assert got.keys() == want.keys()
    for name, value in want.items():
        assert numpy.allclose(got[name], value, rtol=1e-6, atol=1e-9), name
    loaded = LlamaForCausalLM.from_pretrained(tmp_path / "hf")
    assert loaded.config.num_key_value_heads == 2 and not loaded.config.tie_word_embeddings


NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
         "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
         "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def write_model(path, model, tokenizer, arch, interleave, more=()):
    """A model as the conversion to GGUF writes it; `interleave`: rows of queries and keys, as it does for Llama."""
    config = model.config
    writer = llama_writer(path, config, tokenizer, arch)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        parts = name.split(".")
        block = f"blk.{parts[2]}." if name.startswith("model.layers.") else ""
        module, kind = (".".join(parts[3:]) if block else name).rsplit(".", 1)
        value, target = value.numpy(), NAMES[module]
        if interleave and target in heads:
            value = interleaved(value, heads[target])
        writer.add_tensor(f"{block}{target}.{kind}", value)
    for name, value in more:
        writer.add_tensor(name, value)
    close(writer)


def continues_alike(model, folder, tokenizer):
    """The same weights, and the same continuation of a text."""
    got = type(model).from_pretrained(folder)
    for name, value in model.state_dict().items():
        assert torch.equal(got.state_dict()[name], value), name
    ids = torch.tensor([tokenizer.encode(TEXTS[0]).ids])
    want = model.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0)[0, ids.shape[1]:].tolist()
    said = trireme("generate", "--model", folder, "--prompt", TEXTS[0], "--max-new-tokens", 8, "--greedy", "--json").stdout
    ours = json_lines(said)[0]["new_ids"]
    assert ours == want[:len(ours)] and ours
    return got


@pytest.mark.parametrize("factor,head_dim", [(8.0, 64), (32.0, 32)])
def test_llama_3_with_its_rotary_scaling(tmp_path, factor, head_dim):
    """rope_freqs.weight holds by how much each frequency is divided; config.json says with which settings."""
    tokenizer = byte_level_bpe()
    torch.manual_seed(3)
    settings = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192}
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=4 * head_dim, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=131072, rms_norm_eps=1e-5,
        tie_word_embeddings=True, bos_token_id=0, eos_token_id=0, rope_parameters={"rope_theta": 5000.0} | settings)).eval()
    plain = 1.0 / 5000.0 ** (torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    factors = (plain / model.model.rotary_emb.inv_freq.double()).float().numpy()
    assert factors.max() == pytest.approx(factor) and factors.min() == pytest.approx(1)
    write_model(tmp_path / "m.gguf", model, tokenizer, "llama", True, [("rope_freqs.weight", factors)])
    convert(tmp_path / "m.gguf", tmp_path / "hf")
    got = continues_alike(model, tmp_path / "hf", tokenizer)
    read = dict(got.config.rope_parameters)
    assert read.pop("rope_type") == settings.pop("rope_type")
    assert read == pytest.approx(settings | {"rope_theta": 5000.0}, rel=1e-6)
    assert torch.allclose(got.model.rotary_emb.inv_freq, model.model.rotary_emb.inv_freq, rtol=1e-6)
    # Factors that change nothing are no scaling; others are not guessed.
    write_model(tmp_path / "ones.gguf", model, tokenizer, "llama", True, [("rope_freqs.weight", numpy.ones_like(factors))])
    convert(tmp_path / "ones.gguf", tmp_path / "ones")
    assert "rope_scaling" not in json.loads((tmp_path / "ones/config.json").read_text())
    write_model(tmp_path / "own.gguf", model, tokenizer, "llama", True, [("rope_freqs.weight", factors * 1.01)])
    assert "rope_freqs.weight" in convert(tmp_path / "own.gguf", tmp_path / "own", code=2).stderr


def test_qwen2_with_its_biases(tmp_path):
    """Queries and keys are not interleaved, and have biases with the values."""
    tokenizer = byte_level_bpe()
    torch.manual_seed(3)
    model = Qwen2ForCausalLM(Qwen2Config(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, bos_token_id=0, eos_token_id=0,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    write_model(tmp_path / "m.gguf", model, tokenizer, "qwen2", False)
    convert(tmp_path / "m.gguf", tmp_path / "hf")
    got = continues_alike(model, tmp_path / "hf", tokenizer)
    assert got.config.model_type == "qwen2" and got.model.layers[0].self_attn.q_proj.bias.abs().sum() > 0


SMALL = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
             rms_norm_eps=1e-5, bos_token_id=0, eos_token_id=0, pad_token_id=0)
ROPE = dict(rope_parameters={"rope_type": "default", "rope_theta": 5000.0})
GEMMA = dict(head_dim=24, query_pre_attn_scalar=24, sliding_window=6)
EXPERTS = dict(num_experts_per_tok=2, experts_implementation="eager")
LONG = {"rope_type": "longrope", "rope_theta": 5000.0, "partial_rotary_factor": 1.0, "short_factor": [1.0 + i / 8 for i in range(8)],
        "long_factor": [1.0 + i for i in range(8)], "original_max_position_embeddings": 16}
GEMMA3_ROPE = {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
               "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}
OTHERS = {  # the file's architecture, transformers' class and configuration, more of the file's keys
    "qwen3": ("qwen3", hf.Qwen3ForCausalLM, hf.Qwen3Config, ROPE | dict(head_dim=24), {}),
    "qwen3moe": ("qwen3moe", hf.Qwen3MoeForCausalLM, hf.Qwen3MoeConfig,
                 ROPE | EXPERTS | dict(head_dim=24, num_experts=3, moe_intermediate_size=32, norm_topk_prob=True), {}),
    "gemma2": ("gemma2", hf.Gemma2ForCausalLM, hf.Gemma2Config,
               ROPE | GEMMA | dict(attn_logit_softcapping=4.0, final_logit_softcapping=6.0, attn_implementation="eager"),
               {"attn_logit_softcapping": 4.0, "final_logit_softcapping": 6.0}),
    "gemma3": ("gemma3", hf.Gemma3ForCausalLM, hf.Gemma3TextConfig, GEMMA | dict(num_hidden_layers=7, rope_parameters=GEMMA3_ROPE),
               {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}),
    "phi3": ("phi3", hf.Phi3ForCausalLM, hf.Phi3Config, ROPE | dict(sliding_window=7), {}),
    "phi3_long": ("phi3", hf.Phi3ForCausalLM, hf.Phi3Config, dict(rope_parameters=LONG, original_max_position_embeddings=16),
                  {"rope.scaling.original_context_length": 16, "rope.scaling.attn_factor": 1.2}),
    "mixtral": ("llama", hf.MixtralForCausalLM, hf.MixtralConfig, ROPE | EXPERTS | dict(num_local_experts=3), {}),
}


def in_file(model, arch):
    """A model's tensors as the conversion to GGUF writes them, under the names that the gguf package has for them."""
    config, names = model.config, gguf.get_tensor_name_map(next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == arch), model.config.num_hidden_layers)
    for name, value in model.state_dict().items():
        value = value.numpy()
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if arch == "llama":
            name = name.replace(".mlp.", ".block_sparse_moe.")
        if arch.startswith("gemma") and name.endswith("norm.weight"):
            value = value + 1
        for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            if arch == "llama" and part in name:
                value = interleaved(value, heads)
        if name.endswith("experts.gate_up_proj"):
            halves = value.reshape(value.shape[0], 2, -1, value.shape[2])
            for half, kind in enumerate(("gate", "up")):
                yield f"blk.{name.split('.')[2]}.ffn_{kind}_exps.weight", halves[:, half].copy()
        elif name.endswith("experts.down_proj"):
            yield f"blk.{name.split('.')[2]}.ffn_down_exps.weight", value
        else:
            yield names.get_name(name, try_suffixes=(".weight",)), value
    rope = getattr(config, "rope_parameters", None) or {}
    for kind in ("short", "long"):
        if f"{kind}_factor" in rope:
            yield f"rope_factors_{kind}.weight", numpy.array(rope[f"{kind}_factor"], numpy.float32)


def write_other(path, model, tokenizer, arch, more):
    config = model.config
    writer = gguf.GGUFWriter(path, arch)
    keys = {"context_length": config.max_position_embeddings, "embedding_length": config.hidden_size, "block_count": config.num_hidden_layers,
            "feed_forward_length": config.intermediate_size, "attention.head_count": config.num_attention_heads,
            "attention.head_count_kv": config.num_key_value_heads, "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
            "rope.freq_base": 5000.0}
    if arch.startswith(("qwen3", "gemma")):
        keys |= {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim}
    if getattr(config, "sliding_window", None):
        keys["attention.sliding_window"] = config.sliding_window
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    if experts:
        keys |= {"expert_count": experts, "expert_used_count": config.num_experts_per_tok}
    if arch == "qwen3moe":
        keys["expert_feed_forward_length"] = config.moe_intermediate_size
    for key, value in (keys | more).items():
        {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)](f"{arch}.{key}", value)
    add_byte_level(writer, tokenizer, "qwen2" if arch.startswith("qwen") else "llama-bpe")
    writer.add_pad_token_id(0)
    for name, value in in_file(model, arch):
        writer.add_tensor(name, numpy.ascontiguousarray(value))
    close(writer)


@pytest.mark.parametrize("kind", OTHERS)
def test_other_architectures(tmp_path, kind):
    """Numbers of transformers, which loads what came of the file; what it makes of the file itself where it knows how."""
    arch, model_class, config_class, keys, more = OTHERS[kind]
    tokenizer = byte_level_bpe()
    torch.manual_seed(3)
    model = model_class(config_class(vocab_size=tokenizer.get_vocab_size(), **(SMALL | keys))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    write_other(tmp_path / "m.gguf", model, tokenizer, arch, more)
    convert(tmp_path / "m.gguf", tmp_path / "hf")
    got, said = model_class.from_pretrained(tmp_path / "hf", attn_implementation=model.config._attn_implementation, output_loading_info=True)
    assert not said["missing_keys"] and not said["unexpected_keys"] and not said["mismatched_keys"]
    for name, value in model.state_dict().items():  # 1 is added to a norm's factor, and taken away again
        assert torch.allclose(got.state_dict()[name], value, rtol=0, atol=2e-7 if "norm" in name else 0), name
    for length in (11, 30):  # beyond windows and original lengths
        ids = torch.arange(length).unsqueeze(0) * 7 % tokenizer.get_vocab_size()
        assert torch.allclose(got.eval()(ids).logits, model(ids).logits, rtol=0, atol=1e-4), length
    ids = torch.tensor([tokenizer.encode(TEXTS[0]).ids])
    want = model.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0)[0, ids.shape[1]:].tolist()
    said = trireme("generate", "--model", tmp_path / "hf", "--prompt", TEXTS[0], "--max-new-tokens", 8, "--greedy", "--json").stdout
    ours = json_lines(said)[0]["new_ids"]
    assert ours == want[:len(ours)] and ours
    if kind in ("gemma2", "gemma3", "phi3"):
        theirs = hf.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="m.gguf").state_dict()
        assert all(torch.equal(theirs[name], value) for name, value in got.state_dict().items())


def test_a_model_whose_scores_are_divided_by_its_stream(tmp_path):
    """Gemma 2 of 46 blocks, which its files do not say: queries are scaled by the stream's share of a head."""
    tokenizer = byte_level_bpe()
    sizes = SMALL | ROPE | GEMMA | dict(hidden_size=32, intermediate_size=8, num_attention_heads=2, num_hidden_layers=46, head_dim=4)
    model = hf.Gemma2ForCausalLM(hf.Gemma2Config(vocab_size=tokenizer.get_vocab_size(), **sizes))
    write_other(tmp_path / "m.gguf", model, tokenizer, "gemma2", {})
    convert(tmp_path / "m.gguf", tmp_path / "hf")
    config = json.loads((tmp_path / "hf/config.json").read_text())
    assert (config["query_pre_attn_scalar"], config["head_dim"]) == (16, 4)
    assert "attn_logit_softcapping" not in config and hf.AutoConfig.from_pretrained(tmp_path / "hf").attn_logit_softcapping == 50


def test_what_no_configuration_says_is_refused(tmp_path):
    tokenizer = byte_level_bpe()
    model = hf.Qwen3ForCausalLM(hf.Qwen3Config(vocab_size=tokenizer.get_vocab_size(), **(SMALL | ROPE | dict(head_dim=24))))
    for more, word in (({"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}, "yarn"), ({"expert_count": 3}, "with experts is not supported")):
        write_other(tmp_path / "m.gguf", model, tokenizer, "qwen3", more)
        said = convert(tmp_path / "m.gguf", tmp_path / "hf", code=2).stderr
        assert word in said and not (tmp_path / "hf").exists()


@pytest.mark.parametrize("space", [True, False])
def test_a_sentencepiece_tokenizer(tmp_path, space):
    """With a space before the text, as Llama has it, and without, as Gemma's files say."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "a", "b", "▁a", "ab", "▁ab"]
    kinds = [gguf.TokenType.UNKNOWN, *2 * [gguf.TokenType.CONTROL], *256 * [gguf.TokenType.BYTE], *6 * [gguf.TokenType.NORMAL]]
    config = LlamaConfig(vocab_size=len(tokens), hidden_size=8, intermediate_size=8, num_hidden_layers=0, num_attention_heads=2,
                         num_key_value_heads=2, max_position_embeddings=8, rms_norm_eps=1e-5)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    for add, value in ((writer.add_context_length, 8), (writer.add_embedding_length, 8), (writer.add_block_count, 0),
                       (writer.add_feed_forward_length, 8), (writer.add_head_count, 2), (writer.add_layer_norm_rms_eps, 1e-5)):
        add(value)
    writer.add_tokenizer_model("llama")
    if not space:
        writer.add_add_space_prefix(False)
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 259 + [-10.0, -11.0, -12.0, -2.0, -1.0, -3.0])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_tensor("token_embd.weight", numpy.zeros((len(tokens), config.hidden_size), numpy.float32))
    writer.add_tensor("output_norm.weight", numpy.ones(config.hidden_size, numpy.float32))
    close(writer)
    convert(tmp_path / "m.gguf", tmp_path / "hf")
    said = trireme("tokenizer", "encode", "--tokenizer", tmp_path / "hf", "--text", "ab aé", "--special", "--json").stdout
    ids = json_lines(said)[0]["ids"]
    assert [tokens[i] for i in ids] == ["<s>", "▁ab" if space else "ab", "▁a", "<0xC3>", "<0xA9>"]
    assert Tokenizer.from_file(str(tmp_path / "hf/tokenizer.json")).encode("ab aé").ids == ids


def test_refusals(tmp_path):
    tokenizer = byte_level_bpe()
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=32, n_head=4, n_positions=64, vocab_size=tokenizer.get_vocab_size()))
    write_gpt2(tmp_path / "m.gguf", model, tokenizer)
    good = (tmp_path / "m.gguf").read_bytes()

    def refused(content, word):
        (tmp_path / "bad.gguf").write_bytes(content)
        assert word in convert(tmp_path / "bad.gguf", tmp_path / "out", code=2).stderr
        assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.gguf", "m.gguf"]

    refused(b"GGML" + good[4:], "GGUF")
    refused(good[:4] + (1).to_bytes(4, "little") + good[8:], "version 1")
    refused(good[:8] + (2**62).to_bytes(8, "little") + good[16:], "at byte")
    refused(good[: len(good) // 2], "end of the file")
    refused(good[:100], "at byte")
    refused(good.replace(b"gpt2", b"gpt3", 1), "gpt3")
    refused(good.replace(b"blk.0.ffn_up.bias", b"blk.0.ffn_up.bbbb", 1), "ffn_up")
    rng = numpy.random.default_rng(2)
    for _ in range(12):  # damage anywhere ends in a word, not in a crash
        damaged = bytearray(good)
        for at in rng.integers(0, 6000, 4):
            damaged[at] = rng.integers(0, 256)
        (tmp_path / "bad.gguf").write_bytes(damaged)
        done = subprocess.run([PROGRAM, "ckpt", "convert", tmp_path / "bad.gguf", tmp_path / "out", "--to", "hf"],
                              capture_output=True, text=True, timeout=60)
        assert done.returncode in (0, 2), done.stderr
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
