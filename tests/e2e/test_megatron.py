"""Checkpoint folders of old Megatron-LM, of every version, rank and stage, and of LiBai become Hugging Face folders bit for bit."""

import argparse
import collections
import json
import pickle
import random

import numpy
import pytest
import torch
import transformers as hf

from support import trireme

HEADS, HIDDEN, LAYERS = 4, 16, 4


def fused(*things, heads, version):
    """Queries, keys and values (or the last two) of some heads as a version of Megatron-LM keeps them."""
    size = HIDDEN // HEADS
    each = torch.stack([t.reshape(HEADS, size, *t.shape[1:])[heads] for t in things])  # [3, heads, size, ...]
    if version >= 2:
        each = each.transpose(0, 1)
    elif version >= 1:
        each = each.movedim(0, 2)
    return each.flatten(0, 2).contiguous()


def part(t, rank, ranks, dim):
    return t.chunk(ranks, dim)[rank].contiguous()


def nested(flat):
    """{"a.b": t} -> {"a": {"b": t}}, but for names within a transformer, which stay flat."""
    tree = {}
    for name, tensor in flat.items():
        at, *rest = name.split("/")
        inner = tree
        for step in rest:
            inner = inner.setdefault(at, {})
            at = step
        inner[at] = tensor
    return tree


def block(q, k, v, linears, norms, layer, heads, rank, ranks, version, attention):
    """A block's entries: `linears` are out, in, out of the MLP as [out, in]."""
    (ow, ob), (iw, ib), (dw, db) = linears
    scope = f"layers.{layer}."
    out = {f"{attention}.query_key_value.weight": fused(q[0], k[0], v[0], heads=heads, version=version),
           f"{attention}.query_key_value.bias": fused(q[1], k[1], v[1], heads=heads, version=version),
           f"{attention}.dense.weight": part(ow, rank, ranks, 1), f"{attention}.dense.bias": ob,
           "mlp.dense_h_to_4h.weight": part(iw, rank, ranks, 0), "mlp.dense_h_to_4h.bias": part(ib, rank, ranks, 0),
           "mlp.dense_4h_to_h.weight": part(dw, rank, ranks, 1), "mlp.dense_4h_to_h.bias": db}
    for name, norm in zip(("input_layernorm", "post_attention_layernorm"), norms):
        out |= {f"{name}.weight": norm.weight.data, f"{name}.bias": norm.bias.data}
    return {scope + name: tensor.clone() for name, tensor in out.items()}


def gpt2_blocks(model, layer, *place):
    h = model.transformer.h[layer]
    qkv = [(w.T, b) for w, b in zip(h.attn.c_attn.weight.data.chunk(3, 1), h.attn.c_attn.bias.data.chunk(3))]
    linears = [(m.weight.data.T, m.bias.data) for m in (h.attn.c_proj, h.mlp.c_fc, h.mlp.c_proj)]
    return lambda local: block(*qkv, linears, (h.ln_1, h.ln_2), local, *place)


def bert_blocks(model, layer, *place):
    h = model.bert.encoder.layer[layer]
    own = getattr(h.attention, "self")
    qkv = [(m.weight.data, m.bias.data) for m in (own.query, own.key, own.value)]
    linears = [(m.weight.data, m.bias.data) for m in (h.attention.output.dense, h.intermediate.dense, h.output.dense)]
    return lambda local: block(*qkv, linears, (h.attention.ln, h.ln), local, *place)


def write(folder, model, kind, tp, pp, version, encoder="encoder", attention="self_attention"):
    args = argparse.Namespace(num_layers=LAYERS, hidden_size=HIDDEN, num_attention_heads=HEADS, max_position_embeddings=24, ffn_hidden_size=40,
                              layernorm_epsilon=1e-4, bias_gelu_fusion=True, openai_gelu=False, params_dtype=torch.float16,
                              hidden_dropout=0.0, attention_dropout=0.0)
    (folder / "iter_0000100").mkdir(parents=True)
    (folder / "latest_checkpointed_iteration.txt").write_text("100")
    lm = "language_model/"
    base = model.transformer if kind == "gpt" else model.bert
    for stage in range(pp):
        for rank in range(tp):
            heads = slice(rank * HEADS // tp, (rank + 1) * HEADS // tp)
            flat = {}
            if stage == 0:
                words, places = (base.wte, base.wpe) if kind == "gpt" else (base.embeddings.word_embeddings, base.embeddings.position_embeddings)
                flat |= {lm + "embedding/word_embeddings/weight": part(words.weight.data, rank, tp, 0),
                         lm + "embedding/position_embeddings/weight": places.weight.data}
                if kind == "bert":
                    flat[lm + "embedding/tokentype_embeddings/weight"] = base.embeddings.token_type_embeddings.weight.data
            each = LAYERS // pp
            for local in range(each):
                made = (gpt2_blocks if kind == "gpt" else bert_blocks)(model, stage * each + local, heads, rank, tp, version, attention)(local)
                flat |= {f"{lm}{encoder}/{name}": tensor for name, tensor in made.items()}
            if stage == pp - 1:
                last = base.ln_f if kind == "gpt" else base.encoder.ln
                flat |= {f"{lm}{encoder}/final_layernorm.weight": last.weight.data, f"{lm}{encoder}/final_layernorm.bias": last.bias.data}
                if kind == "bert":
                    head = model.cls.predictions
                    flat |= {lm + "pooler/dense.weight": base.pooler.dense.weight.data, lm + "pooler/dense.bias": base.pooler.dense.bias.data,
                             "lm_head/bias": part(head.bias.data, rank, tp, 0), "lm_head/dense.weight": head.transform.dense.weight.data,
                             "lm_head/dense.bias": head.transform.dense.bias.data, "lm_head/layernorm.weight": head.transform.LayerNorm.weight.data,
                             "lm_head/layernorm.bias": head.transform.LayerNorm.bias.data,
                             "binary_head/weight": model.cls.seq_relationship.weight.data, "binary_head/bias": model.cls.seq_relationship.bias.data}
                if pp > 1:
                    flat["word_embeddings_for_head/weight"] = torch.zeros(2, 2)
            name = f"mp_rank_{rank:02d}" + (f"_{stage:03d}" if pp > 1 else "")
            (folder / "iter_0000100" / name).mkdir()
            saved = {"args": args, "iteration": 100, "model": nested({k: v.clone() for k, v in flat.items()}),
                     "optimizer": {"state": {0: {"exp_avg": torch.zeros(3)}}, "param_groups": [{"lr": 0.1}]},
                     "rng_state": [{"random_rng_state": random.getstate(), "np_rng_state": numpy.random.get_state(),
                                    "torch_rng_state": torch.get_rng_state()}]}
            if version:
                saved["checkpoint_version"] = float(version)
            torch.save(saved, folder / "iter_0000100" / name / "model_optim_rng.pt")


def gpt2():
    return hf.GPT2LMHeadModel(hf.GPT2Config(n_layer=LAYERS, n_embd=HIDDEN, n_head=HEADS, n_positions=24, n_inner=40, vocab_size=64, layer_norm_epsilon=1e-4))


def megatron_bert():
    return hf.MegatronBertForPreTraining(hf.MegatronBertConfig(num_hidden_layers=LAYERS, hidden_size=HIDDEN, num_attention_heads=HEADS,
                                                               intermediate_size=40, max_position_embeddings=24, vocab_size=64, layer_norm_eps=1e-4))


@pytest.mark.parametrize("kind,tp,pp,version", [("gpt", 1, 1, 0), ("gpt", 2, 1, 0), ("gpt", 2, 2, 1), ("gpt", 4, 1, 2), ("gpt", 2, 2, 3),
                                                ("bert", 1, 1, 3), ("bert", 2, 2, 1)])
def test_weights_come_over_bit_for_bit(tmp_path, kind, tp, pp, version):
    torch.manual_seed(1)
    model = gpt2() if kind == "gpt" else megatron_bert()
    for p in model.parameters():
        torch.nn.init.normal_(p)
    old = version < 3
    write(tmp_path / "megatron", model, kind, tp, pp, version, "transformer" if old else "encoder", "attention" if old else "self_attention")
    trireme("ckpt", "convert", tmp_path / "megatron", tmp_path / "hf", "--to", "hf")
    loaded, said = type(model).from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not said["missing_keys"] and not said["unexpected_keys"] and not said["mismatched_keys"]
    own, theirs = dict(model.named_parameters()), dict(loaded.named_parameters())
    assert own.keys() == theirs.keys() and all(torch.equal(own[name], theirs[name]) for name in own)
    assert "gelu_new" in (loaded.config.to_dict().get("activation_function"), loaded.config.to_dict().get("hidden_act"))
    trireme("ckpt", "inspect", tmp_path / "hf")
    half = trireme("ckpt", "convert", tmp_path / "megatron", tmp_path / "half", "--to", "hf", "--dtype", "bf16")
    assert "tensors" in half.stderr


def blenderbot(decoder_layers=3, activation="gelu_new"):
    return hf.BlenderbotForConditionalGeneration(hf.BlenderbotConfig(
        d_model=HIDDEN, encoder_layers=LAYERS, decoder_layers=decoder_layers, encoder_attention_heads=HEADS, decoder_attention_heads=HEADS, encoder_ffn_dim=40,
        decoder_ffn_dim=40, max_position_embeddings=24, vocab_size=64, activation_function=activation, dropout=0, forced_eos_token_id=None))


def t5_half(layers, behind, cross, heads, rank, ranks, version, attention):
    """The blocks of a half of a T5: those of an encoder, and with `cross` between attention and MLP those of a decoder."""
    out = {}
    for number, h in enumerate(layers):
        own = h.self_attn
        qkv = [(m.weight.data, m.bias.data) for m in (own.q_proj, own.k_proj, own.v_proj)]
        linears = [(m.weight.data, m.bias.data) for m in (own.out_proj, h.fc1, h.fc2)]
        norms = (h.self_attn_layer_norm, h.encoder_attn_layer_norm if cross else h.final_layer_norm)
        out |= block(*qkv, linears, norms, number, heads, rank, ranks, version, attention)
        if not cross:
            continue
        other, scope = h.encoder_attn, f"layers.{number}."
        out |= {f"{scope}{cross}.query.weight": part(other.q_proj.weight.data, rank, ranks, 0).clone(),
                f"{scope}{cross}.query.bias": part(other.q_proj.bias.data, rank, ranks, 0).clone(),
                f"{scope}{cross}.dense.weight": part(other.out_proj.weight.data, rank, ranks, 1).clone(),
                f"{scope}{cross}.dense.bias": other.out_proj.bias.data.clone(),
                f"{scope}{behind}.weight": h.final_layer_norm.weight.data.clone(), f"{scope}{behind}.bias": h.final_layer_norm.bias.data.clone()}
        for kind in ("weight", "bias"):
            keys, values = getattr(other.k_proj, kind).data, getattr(other.v_proj, kind).data
            out[f"{scope}{cross}.key_value.{kind}"] = fused(keys, values, heads=heads, version=version)
    return out


def normed(half):
    return {"final_layernorm.weight": half.layer_norm.weight.data, "final_layernorm.bias": half.layer_norm.bias.data}


def filled_t5(**config):
    """Both halves look up places in one table."""
    torch.manual_seed(1)
    model = blenderbot(**config).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p)
    model.final_logits_bias.normal_()
    model.model.decoder.embed_positions.weight.data.copy_(model.model.encoder.embed_positions.weight.data)
    return model


def write_t5(folder, model, tp, version, **more):
    args = argparse.Namespace(num_layers=LAYERS, encoder_num_layers=LAYERS, decoder_num_layers=3, hidden_size=HIDDEN, num_attention_heads=HEADS,
                              max_position_embeddings=24, ffn_hidden_size=40, layernorm_epsilon=1e-5, hidden_dropout=0.1, attention_dropout=0.2)
    vars(args).update(more)
    lm, base = "language_model/", model.model
    attention = "self_attention" if version >= 3 else "attention"
    for rank in range(tp):
        heads = slice(rank * HEADS // tp, (rank + 1) * HEADS // tp)
        flat = {lm + "embedding/word_embeddings/weight": part(base.shared.weight.data, rank, tp, 0),
                lm + "embedding/position_embeddings/weight": base.encoder.embed_positions.weight.data,
                "lm_head/bias": part(model.final_logits_bias[0], rank, tp, 0)}
        for name, half, cross in (("encoder", base.encoder, ""), ("decoder", base.decoder, "inter_attention")):
            made = t5_half(half.layers, "post_inter_attention_layernorm", cross, heads, rank, tp, version, attention)
            flat |= {f"{lm}{name}/{key}": tensor for key, tensor in (made | normed(half)).items()}
        own = folder / f"iter_0000100/mp_rank_{rank:02d}"
        own.mkdir(parents=True)
        saved = {"args": args, "iteration": 100, "model": nested({k: v.clone() for k, v in flat.items()}), "checkpoint_version": float(version)}
        torch.save(saved, own / "model_optim_rng.pt")
    (folder / "latest_checkpointed_iteration.txt").write_text("100")


def same_t5(folder, model):
    loaded, said = hf.BlenderbotForConditionalGeneration.from_pretrained(folder, output_loading_info=True)
    assert not said["missing_keys"] and not said["unexpected_keys"] and not said["mismatched_keys"]
    own, theirs = model.state_dict(), loaded.state_dict()
    assert own.keys() == theirs.keys() and all(torch.equal(own[name], theirs[name]) for name in own)
    ids, words = torch.randint(0, 64, (2, 9)), torch.randint(0, 64, (2, 7))
    assert torch.equal(model(ids, decoder_input_ids=words).logits, loaded.eval()(ids, decoder_input_ids=words).logits)
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("tp,version", [(1, 3), (2, 2), (2, 1), (4, 0)])
def test_a_t5_is_a_blenderbot(tmp_path, tp, version):
    model = filled_t5()
    write_t5(tmp_path / "megatron", model, tp, version)
    trireme("ckpt", "convert", tmp_path / "megatron", tmp_path / "hf", "--to", "hf")
    config = same_t5(tmp_path / "hf", model)
    assert (config["encoder_layers"], config["decoder_layers"], config["decoder_ffn_dim"]) == (LAYERS, 3, 40)
    assert (config["activation_function"], config["dropout"], config["attention_dropout"]) == ("gelu_new", 0.1, 0.2)


def test_a_t5_whose_norms_add_something_else(tmp_path):
    write_t5(tmp_path / "megatron", filled_t5(), 1, 3, layernorm_epsilon=1e-12)
    done = trireme("ckpt", "convert", tmp_path / "megatron", tmp_path / "hf", "--to", "hf", code=2)
    assert "1e-12 (layernorm_epsilon)" in done.stderr and "1e-5" in done.stderr and not (tmp_path / "hf").exists()


class Tensor:
    """Pickled as OneFlow's: a class of another package, and where its bytes are."""

    def __init__(self, path):
        self.path = path

    def __getstate__(self):
        return {"path": self.path}


def write_libai(folder, model, kind, legacy):
    """A run of LiBai: config.yaml, last_checkpoint, a folder per tensor."""
    flat = {}
    for layer in range(LAYERS):
        made = (gpt2_blocks if kind == "gpt" else bert_blocks)(model, layer, slice(0, HEADS), 0, 1, 3, "self_attention")(layer)
        scope = "GPT_model.transformer." if kind == "gpt" else "bert."
        flat |= {scope + (name if kind == "gpt" else name.replace("layers.", "encoders.", 1)): tensor for name, tensor in made.items()}
    if kind == "gpt":
        base, words = model.transformer, "GPT_model.embeddings."
        flat |= {words + "token_embeddings.weight": base.wte.weight, words + "position_embeddings.weight": base.wpe.weight}
        norms = {"GPT_model.transformer.layernorm_f": base.ln_f}
        cfg = {"num_layers": LAYERS, "ffn_hidden_size": 40, "max_seq_length": 24, "layernorm_epsilon": 1e-4}
    else:
        base, head, words = model.bert, model.cls.predictions, "bert.embeddings."
        flat |= {words + "vocab_embeddings.weight": base.embeddings.word_embeddings.weight,
                 words + "position_embeddings.weight": base.embeddings.position_embeddings.weight,
                 words + "tokentype_embeddings.weight": base.embeddings.token_type_embeddings.weight, "cls_head.lm_logits.bias": head.bias}
        norms = {"bert.final_layernorm": base.encoder.ln, "bert.pooler.dense": base.pooler.dense, "cls_head.predictions.dense": head.transform.dense,
                 "cls_head.predictions.layernorm": head.transform.LayerNorm, "cls_head.seq_relationship": model.cls.seq_relationship}
        cfg = {"hidden_layers": LAYERS, "intermediate_size": 40, "max_position_embeddings": 24, "layernorm_eps": 1e-4}
    for name, module in norms.items():
        flat |= {f"{name}.weight": module.weight, f"{name}.bias": module.bias}
    write_oneflow(folder, flat, cfg, legacy)


def write_oneflow(folder, flat, cfg, legacy):
    root = folder / "model_0000099/model"
    root.mkdir(parents=True)
    cfg |= {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "bias_gelu_fusion": True, "apply_residual_post_layernorm": False}
    (folder / "config.yaml").write_text(json.dumps({"model": {"_target_": "libai.models.X", "cfg": cfg}, "train": {"seed": 1}}))
    (folder / "last_checkpoint").write_text("model_0000099")
    pickled = collections.OrderedDict()
    for number, (name, tensor) in enumerate(flat.items()):
        own = root / (name if legacy else f"global_tensor_{number}")
        own.mkdir()
        tensor.detach().numpy().tofile(own / "out")
        (own / "meta").write_text("shape {\n" + "".join(f"  dim: {n}\n" for n in tensor.shape) + "}\ndata_type: kFloat\n")
        pickled[name] = Tensor(own.name)
    if legacy:
        (root / "snapshot_done").write_text("")
    else:
        (root / "pickled_data").write_bytes(pickle.dumps({"protocol_version": 1, "data": pickled}))


@pytest.mark.parametrize("kind,legacy,part", [("gpt", False, ""), ("gpt", True, "model_0000099"), ("bert", False, "model_0000099/model")])
def test_libais_weights_come_over_bit_for_bit(tmp_path, kind, legacy, part):
    torch.manual_seed(1)
    model = gpt2() if kind == "gpt" else megatron_bert()
    for p in model.parameters():
        torch.nn.init.normal_(p)
    write_libai(tmp_path / "libai", model, kind, legacy)
    trireme("ckpt", "convert", tmp_path / "libai" / part, tmp_path / "hf", "--to", "hf")
    loaded, said = type(model).from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not said["missing_keys"] and not said["unexpected_keys"] and not said["mismatched_keys"]
    own, theirs = dict(model.named_parameters()), dict(loaded.named_parameters())
    assert all(torch.equal(own[name], theirs[name]) for name in own)
    out = next((tmp_path / "libai").rglob("out"))
    out.write_bytes(out.read_bytes()[:-1])
    assert "shape and type" in trireme("ckpt", "convert", tmp_path / "libai", tmp_path / "b", "--to", "hf", code=2).stderr
    (tmp_path / "libai/config.yaml").unlink()
    assert "config.yaml" in trireme("ckpt", "convert", tmp_path / "libai", tmp_path / "b", "--to", "hf", code=2).stderr


def test_libais_t5(tmp_path):
    model = filled_t5(decoder_layers=LAYERS, activation="gelu")
    flat = {"t5_model.embedding.word_embeddings.weight": model.model.shared.weight, "t5_model.lm_head.bias": model.final_logits_bias[0],
            "t5_model.embedding.position_embeddings.weight": model.model.encoder.embed_positions.weight}
    for name, half, cross in (("encoder", model.model.encoder, ""), ("decoder", model.model.decoder, "cross_attention")):
        made = t5_half(half.layers, "post_cross_attention_layernorm", cross, slice(0, HEADS), 0, 1, 3, "self_attention")
        flat |= {f"t5_model.{name}.{key}": tensor for key, tensor in (made | normed(half)).items()}
    write_oneflow(tmp_path / "libai", flat, {"hidden_layers": LAYERS, "intermediate_size": 40, "max_position_embeddings": 24,
                                            "layernorm_eps": 1e-5}, False)
    trireme("ckpt", "convert", tmp_path / "libai", tmp_path / "hf", "--to", "hf")
    config = same_t5(tmp_path / "hf", model)
    assert config["activation_function"] == "gelu" and config["decoder_layers"] == LAYERS


def test_refusals(tmp_path):
    write(tmp_path / "a", gpt2(), "gpt", 2, 1, 3)
    folder = tmp_path / "a/iter_0000100"
    done = trireme("ckpt", "convert", tmp_path / "a", tmp_path / "out", "--to", "bin", code=2)
    assert "--to hf" in done.stderr
    (folder / "mp_rank_00").rename(folder / "mp_rank_03")
    done = trireme("ckpt", "convert", tmp_path / "a", tmp_path / "out", "--to", "hf", code=2)
    assert "tensor rank 0 of stage 0 lacks" in done.stderr
    (folder / "mp_rank_03").rename(folder / "mp_rank_00")
