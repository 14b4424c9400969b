"""Low-rank adapters: the same numbers on every layout, PEFT's files in and out, merged weights, the base left as it was."""

import json
import pathlib
import shutil
import subprocess

import numpy
import peft
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import GPT2LMHeadModel

from support import PROGRAM, apart, latest, layout, losses, train, trireme

ADAPTER = "model.adapter={r: 3, lora_alpha: 6, target_modules: [c_attn, c_proj, c_fc]}"


@pytest.fixture(scope="module")
def base(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    train(tiny, folder / "run", "train.train_iter=3")
    trireme("ckpt", "convert", latest(folder / "run"), folder / "hf", "--to", "hf")
    return folder / "hf"


def adapt(tiny, base, folder, *words):
    return train(tiny, folder, "train.train_iter=4", f"model={{pretrained: {base}}}", ADAPTER, "optim.lr=0.01", *words)


def test_every_layout_trains_the_adapter_alone(tiny, base, tmp_path):
    adapt(tiny, base, tmp_path / "one")
    for name, words in (("tensor", layout(tp=2)), ("all", layout(dp=2, tp=2, pp=2)),
                        ("parallel", [*layout(tp=2), "train.dist.sequence_parallel=true"]),
                        ("zero", [*layout(dp=2), "train.zero_optimization.stage=3"])):
        adapt(tiny, base, tmp_path / name, *words)
        assert apart(list(losses(tmp_path / name).values()), list(losses(tmp_path / "one").values())) < 1e-5, name
    # A run that was stopped goes on as it would have.
    train(tiny, tmp_path / "stopped", "train.train_iter=4", f"model={{pretrained: {base}}}", ADAPTER, "optim.lr=0.01",
          "train.checkpointer.period=2")
    assert losses(tmp_path / "stopped") == losses(tmp_path / "one")

    trireme("ckpt", "convert", latest(tmp_path / "all"), tmp_path / "peft", "--to", "peft")
    trireme("ckpt", "convert", latest(tmp_path / "all"), tmp_path / "merged", "--to", "hf")
    old, merged = load_file(base / "model.safetensors"), load_file(tmp_path / "merged/model.safetensors")
    adapter = load_file(tmp_path / "peft/adapter_model.safetensors")
    assert old.keys() == merged.keys()
    for name, weight in old.items():
        parts = [adapter.get(f"base_model.model.{name.removesuffix('.weight')}.lora_{x}.weight") for x in "AB"]
        expected = weight if parts[0] is None else weight + 6 / 3 * (parts[1] @ parts[0]).T
        assert numpy.allclose(merged[name], expected, atol=1e-6), name
        assert parts[0] is not None or (merged[name] == weight).all()
    assert sum(name.endswith("c_attn.lora_A.weight") for name in adapter) == 4
    settings = json.loads((tmp_path / "peft/adapter_config.json").read_text())
    assert settings["r"] == 3 and settings["fan_in_fan_out"] is True and settings["peft_type"] == "LORA"
    assert settings["task_type"] == "CAUSAL_LM"
    GPT2LMHeadModel.from_pretrained(tmp_path / "merged")
    assert "adapter" not in json.loads((tmp_path / "merged/config.json").read_text())


def test_adapters_of_peft(tiny, base, tmp_path):
    rng = numpy.random.default_rng(1)
    folder = tmp_path / "peft"
    folder.mkdir()
    tensors = {}
    for block in range(4):
        module = f"base_model.model.transformer.h.{block}.attn.c_attn"
        tensors[f"{module}.lora_A.weight"] = rng.normal(0, 0.1, (4, 32)).astype(numpy.float32)
        tensors[f"{module}.lora_B.weight"] = rng.normal(0, 0.1, (96, 4)).astype(numpy.float32)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["c_attn"], "lora_dropout": 0.0, "bias": "none",
         "fan_in_fan_out": True, "use_dora": False, "task_type": "CAUSAL_LM", "modules_to_save": None}))
    trireme("ckpt", "convert", base, tmp_path / "merged", "--to", "hf", "--adapter", folder)
    # The first loss beside the adapter is that of the merged weights.
    for name, words in (("beside", [f"model={{pretrained: {base}, adapter: {{path: {folder}}}}}", *layout(tp=2, pp=2)]),
                        ("merged_run", [f"model={{pretrained: {tmp_path}/merged}}"])):
        train(tiny, tmp_path / name, "train.train_iter=1", *words)
    assert apart(list(losses(tmp_path / "beside").values()), list(losses(tmp_path / "merged_run").values())) < 1e-5
    old, new = load_file(base / "model.safetensors"), load_file(tmp_path / "merged/model.safetensors")
    changed = sorted(name for name in old if (old[name] != new[name]).any())
    assert changed == [f"transformer.h.{block}.attn.c_attn.weight" for block in range(4)]


@pytest.fixture(scope="module")
def adapted(tiny, base, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapted") / "run"
    adapt(tiny, base, folder)
    return folder


def said(done, *words):
    assert done.stderr.count("error:") == 1 and all(word in done.stderr for word in words), done.stderr


def test_a_run_goes_on_with_its_adapter(tiny, base, adapted):
    words = [f"model={{pretrained: {base}}}", "optim.lr=0.01", "train.train_iter=6", "--resume"]
    advice = f"`trireme ckpt convert {latest(adapted)} DIR --to hf`"
    said(train(tiny, adapted, *words, code=2), "model.adapter is not given", '"r":3', advice)
    said(train(tiny, adapted, *words, ADAPTER.replace("r: 3", "r: 4"), code=2), "model.adapter.r is 4", "trained with 3", advice)
    said(train(tiny, adapted, *words, ADAPTER.replace("alpha: 6", "alpha: 5"), code=2), "model.adapter.lora_alpha is 5", "trained with 6")


def test_another_rank_than_the_weights_have(tiny, base, adapted, tmp_path):
    held = latest(adapted)
    advice = f"`trireme ckpt convert {held} DIR --to hf`"
    for given, words in (("{r: 4, target_modules: [c_fc, c_attn, c_proj]}", ["model.adapter.r is 4", "has 3", "give the same"]),
                         ("{r: 3, target_modules: [c_fc]}", ["model.adapter.target_modules is [\"c_fc\"]", "c_attn"]),
                         ("null", ["model.adapter is null", '"r":3'])):
        said(train(tiny, tmp_path / "run", f"model={{pretrained: {held}, adapter: {given}}}", code=2), *words, str(held), advice)
    # Weights with an adapter go on as such: it alone is trained.
    train(tiny, tmp_path / "on", f"model={{pretrained: {held}}}", "train.train_iter=1")
    trireme("ckpt", "convert", latest(tmp_path / "on"), tmp_path / "on_peft", "--to", "peft")
    for name, words in (("merged", []), ("beside", ["--adapter", tmp_path / "on_peft"])):
        trireme("ckpt", "convert", base if words else latest(tmp_path / "on"), tmp_path / name, "--to", "hf", *words)
    assert json.loads(trireme("ckpt", "diff", tmp_path / "merged", tmp_path / "beside", "--json").stdout)["max_abs"] < 1e-6
    trireme("ckpt", "convert", held, tmp_path / "peft", "--to", "peft")
    beside = f"model={{pretrained: {base}, adapter: {{path: {tmp_path / 'peft'}, r: 4}}}}"
    said(train(tiny, tmp_path / "run", beside, code=2), "model.adapter.r is 4", "model.adapter.path", "has 3", "leave model.adapter.r out")
    # What began from a folder goes on, and is evaluated, without it.
    words = [beside.replace(", r: 4", ""), "train.checkpointer.period=1"]
    train(tiny, tmp_path / "from_peft", *words, "train.train_iter=1")
    shutil.rmtree(tmp_path / "peft")
    trireme("eval", "--config", tiny, f"train.output_dir={tmp_path / 'from_peft'}")


@pytest.mark.parametrize("mesh,form", [("111", "safetensors"), ("212", "bin"), ("122", "oslo")])
def test_one_call_saves_it_merged(base, adapted, tmp_path, mesh, form):
    program = pathlib.Path(PROGRAM).with_name("finetune")
    out = tmp_path / "out"
    subprocess.run([program, latest(adapted), out, *mesh, form], check=True, capture_output=True, timeout=120)
    assert "adapter" not in json.loads((out / "config.json").read_text())
    if form == "oslo":
        trireme("ckpt", "convert", out, tmp_path / "joined", "--to", "hf")
        out = tmp_path / "joined"
    old = GPT2LMHeadModel.from_pretrained(base).state_dict()
    got, loaded = GPT2LMHeadModel.from_pretrained(out, output_loading_info=True)
    assert not loaded["missing_keys"] and not loaded["unexpected_keys"]
    # Ten steps of 1e-3 move no weight much further than 0.01; the adapter moved its own beyond that.
    moved = {name: (weight - old[name]).abs().max().item() for name, weight in got.state_dict().items()}
    assert moved["transformer.h.0.attn.c_attn.weight"] > 0.015 > moved["transformer.h.0.ln_1.weight"] > 0
    assert {p.name for p in tmp_path.iterdir()} <= {"out", "joined"}


MODELS = {
    "TOKEN_CLS": ({"family": "bert", "head": "token_classification", "num_labels": 97, "hidden_size": 32, "num_hidden_layers": 2,
                   "num_attention_heads": 4, "intermediate_size": 44, "vocab_size": 97, "max_position_embeddings": 40},
                  ["query", "value"], {"type": "mlm", "options": {"bos": 90, "eos": 91, "mask": 92}}),
    "SEQ_2_SEQ_LM": ({"family": "t5", "d_model": 32, "d_kv": 8, "d_ff": 44, "num_layers": 2, "num_heads": 4, "vocab_size": 97},
                     ["q", "v"], {"type": "t5", "options": {"sentinel": 96, "eos": 1, "pad": 0}}),
    "CAUSAL_LM": ({"family": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1,
                   "intermediate_size": 44, "vocab_size": 97}, ["q_proj", "k_proj", "v_proj"], {}),
}


@pytest.mark.parametrize("task", MODELS)
def test_other_models_and_what_peft_calls_them(tiny, tmp_path, task):
    """One rank's curve on 2 x 2 x 2; the merged weights are those of the formula; PEFT's word for the model."""
    model, targets, kind = MODELS[task]
    keys = json.loads(tiny.read_text())
    keys["model"] = model | {"adapter": {"r": 2, "lora_alpha": 6, "target_modules": targets}}
    keys["data"]["train"] = [{"path": keys["data"]["train"][0]["path"], **kind}]
    keys["data"].pop("valid")
    keys["train"] |= {"train_iter": 3}
    keys["optim"] |= {"lr": 0.01}
    (tmp_path / "config.yaml").write_text(json.dumps(keys))
    for name, words in (("one", layout()), ("all", layout(dp=2, tp=2, pp=2))):
        train(tmp_path / "config.yaml", tmp_path / name, *words)
    assert apart(list(losses(tmp_path / "one").values()), list(losses(tmp_path / "all").values())) < 1e-5
    run = latest(tmp_path / "all")
    trireme("ckpt", "convert", run, tmp_path / "peft", "--to", "peft")
    trireme("ckpt", "convert", run, tmp_path / "merged", "--to", "hf")
    settings = json.loads((tmp_path / "peft/adapter_config.json").read_text())
    assert settings["task_type"] == task and settings["fan_in_fan_out"] is False
    adapter, merged = load_file(tmp_path / "peft/adapter_model.safetensors"), load_file(tmp_path / "merged/model.safetensors")
    trireme("ckpt", "convert", run, tmp_path / "split", "--to", "split")
    plain = {}
    for part in (tmp_path / "split").glob("model*.safetensors"):
        plain |= load_file(part)
    modules = {name.removeprefix("base_model.model.").removesuffix(".lora_A.weight") for name in adapter if "lora_A" in name}
    assert modules and all(m.rsplit(".", 1)[1] in targets for m in modules)
    for module in modules:
        down, up = (adapter[f"base_model.model.{module}.lora_{x}.weight"] for x in "AB")
        assert numpy.abs(up).max() > 0
        assert numpy.allclose(merged[f"{module}.weight"], plain[f"{module}.weight"] + 3 * up @ down, atol=1e-6), module


@pytest.mark.parametrize("adapter,word", [
    ("{r: 2, target_modules: [q_proj]}", "no linear module of the model is called q_proj"),
    ("{r: 0, target_modules: [c_attn]}", "an integer >= 1"),
    ("{r: 2, target_modules: [c_attn], use_dora: 3}", "true or false"),
    ("{r: 2, target_modules: [c_attn], lora_bias: true}", "lora_bias"),
    ("{r: 2, target_modules: [c_attn], lora_dropout: 1.5}", "lora_dropout"),
    ("{r: 2, target_modules: [c_attn], rank_pattern: {c_proj: 4}}", "rank_pattern: c_proj matches no module that has an adapter"),
    ("{r: 2, target_modules: [c_attn], rank_pattern: {c_attn: 0}}", "ranks >= 1"),
    ("{r: 2, target_modules: [c_attn], alpha_pattern: [c_attn]}", "a map from names of modules to numbers"),
    ("{r: 2, target_modules: [c_attn], rank_pattern: {'h.(0': 4}}", "no regular expression"),
    ("{r: 2, targets: [c_attn], target_modules: [c_attn]}", "targets is not a key"),
    ("{r: 2}", "target_modules")])
def test_what_is_refused(tiny, tmp_path, adapter, word):
    assert word in train(tiny, tmp_path / "run", f"model.adapter={adapter}", code=2).stderr
    assert not (tmp_path / "run/checkpoints").exists()


DORA = ("{r: 3, lora_alpha: 6, use_dora: true, lora_dropout: 0.2, target_modules: [c_attn, c_proj, c_fc], "
        "rank_pattern: {'h\\.[01]\\.attn.c_attn': 5}, alpha_pattern: {c_fc: 4}}")


def test_every_layout_trains_magnitudes_and_drops_alike(tiny, base, tmp_path):
    """DoRA with dropout and ranks of some modules' own; PEFT itself reads the files and gives the merged weights' logits."""
    words = ["train.train_iter=4", "optim.lr=0.01", f"model={{pretrained: {base}}}"]
    for name, more in (("one", []), ("tensor", layout(tp=4)), ("all", layout(dp=2, tp=2, pp=2)),
                       ("parallel", [*layout(tp=2), "train.dist.sequence_parallel=true"]),
                       ("zero", [*layout(dp=2, tp=2), "train.zero_optimization.stage=3"]),
                       ("again", ["train.activation_checkpoint.enabled=true"])):
        train(tiny, tmp_path / name, *words, f"model.adapter={DORA}", *more)
        assert apart(list(losses(tmp_path / name).values()), list(losses(tmp_path / "one").values())) < 1e-5, name
    train(tiny, tmp_path / "still", *words, f"model.adapter={DORA.replace('0.2', '0')}")
    assert apart(list(losses(tmp_path / "still").values()), list(losses(tmp_path / "one").values())) > 1e-4

    run = latest(tmp_path / "all")
    trireme("ckpt", "convert", run, tmp_path / "peft", "--to", "peft")
    trireme("ckpt", "convert", run, tmp_path / "merged", "--to", "hf")
    stored = load_file(tmp_path / "peft/adapter_model.safetensors")
    first = "base_model.model.transformer.h.{}.attn.c_attn.lora_A.weight"
    assert [stored[first.format(b)].shape[0] for b in range(4)] == [5, 5, 3, 3]
    assert stored["base_model.model.transformer.h.0.mlp.c_fc.lora_magnitude_vector"].shape == (128,)
    ids = torch.arange(60).reshape(2, 30)
    model = peft.PeftModel.from_pretrained(GPT2LMHeadModel.from_pretrained(base), tmp_path / "peft").eval()
    theirs, ours = (m(ids).logits for m in (model, GPT2LMHeadModel.from_pretrained(tmp_path / "merged").eval()))
    assert (theirs - ours).abs().max() < 1e-4 * theirs.abs().max()
    plain = GPT2LMHeadModel.from_pretrained(base).eval()(ids).logits
    assert (theirs - plain).abs().max() > 1e-2
    # What PEFT writes comes back, and begins where the run ended.
    model.save_pretrained(tmp_path / "theirs")
    for name, adapter in (("from_peft", f"{{path: {tmp_path / 'theirs'}}}"), ("from_ours", f"{{path: {tmp_path / 'peft'}}}")):
        train(tiny, tmp_path / name, "train.train_iter=1", f"model={{pretrained: {base}, adapter: {adapter}}}", *layout(tp=2))
    train(tiny, tmp_path / "on", "train.train_iter=1", f"model={{pretrained: {run}}}", *layout(pp=2))
    for name in ("from_peft", "from_ours"):
        assert apart(list(losses(tmp_path / name).values()), list(losses(tmp_path / "on").values())) < 1e-5, name


def test_magnitudes_begin_as_the_lengths_of_rows(tiny, base, tmp_path):
    """So that the first loss is the base's, whichever way weights lie."""
    words = ["train.train_iter=1", f"model={{pretrained: {base}}}", "model.resid_pdrop=0", "model.embd_pdrop=0", "model.attn_pdrop=0"]
    train(tiny, tmp_path / "base", *words)
    for name, more in (("one", []), ("many", layout(dp=2, tp=2, pp=2)), ("zero", [*layout(dp=2, tp=2), "train.zero_optimization.stage=3"])):
        train(tiny, tmp_path / name, *words, ADAPTER.replace("{", "{use_dora: true, "), "optim.lr=0", *more)
        assert apart(list(losses(tmp_path / name).values()), list(losses(tmp_path / "base").values())) < 1e-5
        trireme("ckpt", "convert", latest(tmp_path / name), tmp_path / f"{name}_peft", "--to", "peft")
        stored = load_file(tmp_path / f"{name}_peft/adapter_model.safetensors")
        weights = load_file(base / "model.safetensors")
        for module in ("attn.c_attn", "attn.c_proj", "mlp.c_fc"):
            got = stored[f"base_model.model.transformer.h.1.{module}.lora_magnitude_vector"]
            assert numpy.allclose(got, numpy.linalg.norm(weights[f"transformer.h.1.{module}.weight"], axis=0), rtol=1e-6)


def test_a_checkpoint_without_an_adapter_has_none_to_write(base, tmp_path):
    assert "holds no adapter" in trireme("ckpt", "convert", base, tmp_path / "x", "--to", "peft", code=2).stderr
