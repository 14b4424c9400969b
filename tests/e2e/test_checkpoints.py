"""Checkpoints between trireme, the Python package safetensors and transformers."""

import json
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

from support import apart, config, latest, layout, learnable_data, lines, losses, peak_memory, train, trireme


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


@pytest.fixture(scope="module")
def older(gpt2):
    """The same model as transformers wrote it before safetensors: one pytorch_model.bin, and shards with an index."""
    folder, model = gpt2
    config = (folder / "one/config.json").read_text()
    state = model.state_dict()
    names = sorted(state)
    for kind in ("bin", "bin-shards"):
        (folder / kind).mkdir()
        (folder / kind / "config.json").write_text(config)
    torch.save(state, folder / "bin/pytorch_model.bin")
    weight_map = {}
    for i in range(3):
        file = f"pytorch_model-{i + 1:05}-of-00003.bin"
        torch.save({name: state[name] for name in names[i::3]}, folder / "bin-shards" / file)
        weight_map |= {name: file for name in names[i::3]}
    (folder / "bin-shards/pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


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


def test_weights_begin_as_hugging_faces(tmp_path):
    """Every tensor's mean and spread; a residual projection is smaller by the root of twice the layers."""
    keys = {"n_layer": 4, "n_embd": 64, "n_head": 4, "n_positions": 64, "vocab_size": 997}
    data = learnable_data(tmp_path / "data")
    path = config(tmp_path, data)
    train(path, tmp_path / "run", *[f"model.{key}={value}" for key, value in keys.items()], "train.train_iter=1", "optim.lr=0",
          "optim.weight_decay=0", "train.checkpointer.format=merged")
    trireme("ckpt", "convert", latest(tmp_path / "run"), tmp_path / "hf", "--to", "hf")
    ours = GPT2LMHeadModel.from_pretrained(tmp_path / "hf").state_dict()
    torch.manual_seed(3)
    theirs = GPT2LMHeadModel(GPT2Config(**keys)).state_dict()
    for name, want in theirs.items():
        got = ours[name]
        if want.std() == 0:
            assert torch.equal(got, want), name
        else:
            near = 6 / want.numel() ** 0.5  # six times what chance does to a standard deviation
            assert abs(got.std() / want.std() - 1) < near and abs(got.mean()) < near * want.std(), name
    assert 0.3 < ours["transformer.h.0.attn.c_proj.weight"].std() / ours["transformer.h.0.attn.c_attn.weight"].std() < 0.4


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


def test_oslo_cuts_a_vocabulary_at_multiples_of_its_largest_part(tmp_path):
    """ceil(10 / 4) = 3 rows a rank, and 1 for the last one, where trireme itself has 3, 3, 2 and 2; 9 rows leave rank 3 of
    an even cut of 3 nothing on 4 ranks."""
    torch.manual_seed(2)
    GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=16, n_head=4, n_positions=16, vocab_size=10)).save_pretrained(tmp_path / "hf")
    trireme("ckpt", "convert", tmp_path / "hf", tmp_path / "oslo", "--to", "oslo", "--tensor-parallel", 4)
    parts = [torch.load(tmp_path / f"oslo/pytorch_model_tp={rank}_pp=0.bin", weights_only=True) for rank in range(4)]
    assert [part["transformer.wte.weight"].shape[0] for part in parts] == [3, 3, 3, 1]
    trireme("ckpt", "convert", tmp_path / "oslo", tmp_path / "back", "--to", "hf")
    assert json.loads(trireme("ckpt", "diff", tmp_path / "hf", tmp_path / "back", "--json").stdout)["equal"]
    GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=16, n_head=4, n_positions=16, vocab_size=9)).save_pretrained(tmp_path / "nine")
    said = trireme("ckpt", "convert", tmp_path / "nine", tmp_path / "x", "--to", "oslo", "--tensor-parallel", 4, code=2).stderr
    assert "9" in said and not (tmp_path / "x").exists()


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


@pytest.mark.parametrize("to,files", [("hf", "model-*.safetensors"), ("bin", "pytorch_model-*.bin"), ("bin", "pytorch_model.bin")])
def test_transformers_reads_what_we_write(gpt2, tmp_path, to, files):
    folder, model = gpt2
    shards = ["--max-shard-size", "40KB"] if "*" in files else []
    trireme("ckpt", "convert", folder / "one", tmp_path / "out", "--to", to, *shards)
    found = sorted((tmp_path / "out").glob(files))
    assert len(found) == 1 if not shards else len(found) > 2
    again = GPT2LMHeadModel.from_pretrained(tmp_path / "out").eval()
    assert torch.equal(logits(again), logits(model))
    if to == "bin":
        assert all(isinstance(t, torch.Tensor) for t in torch.load(found[0], weights_only=True).values())
    trireme("ckpt", "diff", folder / "one", tmp_path / "out")


@pytest.mark.parametrize("source", ["bin", "bin-shards"])
def test_folders_of_pickles(gpt2, older, tmp_path, source):
    trireme("ckpt", "diff", older / "one", older / source)
    trireme("ckpt", "convert", older / source, tmp_path / "split", "--to", "split", "--tensor-parallel", 2)
    trireme("ckpt", "diff", older / "one", tmp_path / "split")


def test_missing_and_damaged_shards_of_pickles(older, tmp_path):
    shutil.copytree(older / "bin-shards", tmp_path / "m")
    file = tmp_path / "m/pytorch_model-00002-of-00003.bin"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    said = trireme("ckpt", "verify", tmp_path / "m", code=2).stderr
    assert file.name in said and "checksum" in said and "tensor" in said
    file.unlink()
    assert file.name in trireme("ckpt", "verify", tmp_path / "m", code=2).stderr


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_types_of_pickles(gpt2, tmp_path, dtype):
    """OSLO's merged file in other types, with shared storages and transposed weights."""
    folder, model = gpt2
    state = {name: t.to(dtype) for name, t in model.state_dict().items()}
    state = {name: t.t().contiguous().t() if t.dim() == 2 and "c_" in name else t for name, t in state.items()}
    state["lm_head.weight"] = state["transformer.wte.weight"]
    (tmp_path / "m").mkdir()
    torch.save(state, tmp_path / "m/pytorch_model.bin")
    (tmp_path / "m/config.json").write_text((folder / "one/config.json").read_text())
    trireme("ckpt", "convert", tmp_path / "m", tmp_path / "hf", "--to", "hf")
    got = load_file(tmp_path / "hf/model.safetensors")
    assert all(got[name].dtype == dtype and torch.equal(got[name], state[name]) for name in got) and len(got) == len(state) - 1


def split_as_oslo(state, tp, stages, blocks, spelling, stale):
    """A state dict cut as OSLO does: blocks shared out with the remainder on the last stage, torch.chunk over tp, each of
    q, k, v on its own. OSLO's files hold stale copies of the layers of other stages."""
    files = {}
    for stage in range(stages):
        own = range(stage * (blocks // stages), (stage + 1) * (blocks // stages) if stage + 1 < stages else blocks)
        for rank in range(tp):
            part = {}
            for name, tensor in state.items():
                words = name.split(".")
                here = int(words[2]) in own if words[1] == "h" else (
                    stage == 0 if "wpe" in name else stage == stages - 1 if "ln_f" in name else stage in (0, stages - 1))
                if not here and not stale:
                    continue
                dim = None
                if "wte" in name or "c_fc.bias" in name:
                    dim = 0
                elif "c_fc.weight" in name:
                    dim = 1
                elif "c_proj.weight" in name:
                    dim = 0
                if "c_attn" in name:
                    cut = torch.cat([block.chunk(tp, -1)[rank] for block in tensor.chunk(3, -1)], -1)
                else:
                    cut = tensor if dim is None else tensor.chunk(tp, dim)[rank]
                part[name] = cut.clone() if here else torch.randn_like(cut)
            files[spelling.format(tp=rank, pp=stage)] = part
    return files


@pytest.mark.parametrize("spelling", ["pytorch_model_tp={tp}_pp={pp}.bin", "pytorch_model_tp_{tp}_pp_{pp}_ep_0.bin"])
@pytest.mark.parametrize("stale", [True, False])
def test_files_of_oslo(gpt2, tmp_path, spelling, stale):
    folder, model = gpt2
    state = {name: t for name, t in model.state_dict().items() if name != "lm_head.weight"}
    (tmp_path / "oslo").mkdir()
    for name, part in split_as_oslo(state, 2, 2, 3, spelling, stale).items():
        torch.save(part, tmp_path / "oslo" / name)
    (tmp_path / "oslo/config.json").write_text((folder / "one/config.json").read_text())
    trireme("ckpt", "diff", folder / "one", tmp_path / "oslo")
    assert json.loads(trireme("ckpt", "inspect", tmp_path / "oslo", "--json").stdout)["kind"] == "oslo"
    trireme("ckpt", "convert", tmp_path / "oslo", tmp_path / "bin", "--to", "bin")
    merged = torch.load(tmp_path / "bin/pytorch_model.bin", weights_only=True)
    assert merged.keys() == state.keys() and all(torch.equal(merged[name], state[name]) for name in state)
    (tmp_path / "oslo" / spelling.format(tp=1, pp=0)).unlink()
    assert spelling.format(tp=1, pp=0) in trireme("ckpt", "inspect", tmp_path / "oslo", code=2).stderr


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
    said = trireme("ckpt", "inspect", tmp_path / "bad", code=2).stderr
    assert "before PyTorch 1.6" in said and "save it again" in said
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


def test_any_run_goes_on_as_any_other(tiny, tmp_path):
    """Layouts, chunks, ZeRO, schedules, formats and types follow one another; the losses are those of one rank."""
    legs = [(3, [*layout(dp=2, tp=2), "train.zero_optimization.stage=1"]),
            (5, [*layout(pp=2), "train.dist.schedule=interleaved", "train.dist.chunks=2", "train.checkpointer.async=true"]),
            (7, [*layout(tp=2, pp=2), "train.dist.schedule=zb-v", "train.dist.chunks=2", "train.checkpointer.format=merged"]),
            (9, [*layout(dp=4), "train.zero_optimization.stage=1", "train.dtype=fp64"]),
            (10, [*layout(dp=2), "train.checkpointer.format=merged", "train.checkpointer.async=true",
                  "train.checkpointer.period=1"]),
            (12, [*layout(tp=4), "train.dist.sequence_parallel=true"])]
    constant = ["train.scheduler.name=warmup_constant", "train.scheduler.warmup_ratio=0"]
    train(tiny, tmp_path / "want", *layout(), "train.train_iter=12", *constant)
    for i, (steps, words) in enumerate(legs):
        train(tiny, tmp_path / "run", *words, f"train.train_iter={steps}", *constant, *(["--resume"] if i else []))
        trireme("ckpt", "verify", tmp_path / "run")
    want, drawn = losses(tmp_path / "want"), losses(tmp_path / "run")
    assert sorted(drawn) == sorted(want)
    assert apart(list(want.values()), list(drawn.values())) < 1e-4


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd", "nesterov", "lion", "lamb", "adafactor", "muon"])
def test_any_optimizers_state_goes_on_anywhere(tiny, tmp_path, optimizer):
    """From each leg's layout, ZeRO stage and format to the next one's; the losses are those of one rank."""
    name = "sgd" if optimizer == "nesterov" else optimizer
    words = ["train.dtype=fp64", f"optim.name={name}", "train.scheduler.name=warmup_constant", "train.scheduler.warmup_ratio=0"]
    if name == "sgd":
        words += ["optim.momentum=0.9", f"optim.nesterov={str(optimizer == 'nesterov').lower()}"]
    if name in ("lion", "adafactor"):  # the gradient of a bias of keys is rounding alone, which these two follow
        words += ['optim.groups=[{pattern: "*.c_attn.bias", freeze: true}]']
    legs = [(2, [*layout(dp=2, tp=2), "train.zero_optimization.stage=1"]),
            (4, [*layout(tp=2, pp=2), "train.checkpointer.format=merged"]),
            (6, [*layout(dp=2), "train.zero_optimization.stage=3", "train.checkpointer.async=true"]),
            (8, layout())]
    train(tiny, tmp_path / "want", *layout(), "train.train_iter=8", *words)
    for i, (steps, place) in enumerate(legs):
        train(tiny, tmp_path / "run", *place, *words, f"train.train_iter={steps}", *(["--resume"] if i else []))
    want, drawn = losses(tmp_path / "want"), losses(tmp_path / "run")
    assert sorted(drawn) == sorted(want)
    assert apart(list(want.values()), list(drawn.values())) < 1e-8


def test_the_best_checkpoint_stays(tiny, tmp_path):
    words = [*layout(dp=2), "train.evaluation.enabled=true", "train.evaluation.eval_period=2",
             "train.evaluation.eval_samples=16", "train.checkpointer.keep_best=eval_loss", "train.checkpointer.max_to_keep=1",
             "train.checkpointer.period=3", "optim.lr=0.02", "train.checkpointer.async=true"]
    train(tiny, tmp_path / "run", *words)
    measured = {line["step"]: line["eval_loss"] for line in lines(tmp_path / "run") if "eval_loss" in line}
    best = min(measured, key=measured.get)
    kept = tmp_path / "run/checkpoints/best"
    assert kept.read_text().strip() == f"step_{best:08}"
    assert json.loads((kept.parent / kept.read_text().strip() / "trireme.json").read_text())["metrics"] == {"eval_loss": measured[best]}
    names = sorted(p.name for p in kept.parent.iterdir() if p.is_dir())
    assert names == sorted({f"step_{best:08}", "step_00000012"})
    assert json.loads(trireme("ckpt", "inspect", kept, "--json").stdout)["step"] == best
    trireme("eval", "--config", tiny, "--checkpoint", kept)
    # A run that goes on knows what was best before.
    train(tiny, tmp_path / "run", *words, "train.train_iter=14", "--resume")
    after = {line["step"]: line["eval_loss"] for line in lines(tmp_path / "run") if "eval_loss" in line}
    assert kept.read_text().strip() == f"step_{min(after, key=after.get):08}"
    said = train(tiny, tmp_path / "other", "train.checkpointer.keep_best=eval_loss", code=2).stderr
    assert "keep_best" in said and "evaluates nothing" in said


def test_the_best_checkpoint_by_a_metric(tiny, tmp_path):
    words = [*layout(dp=2), "train.evaluation.enabled=true", "train.evaluation.eval_period=2",
             "train.evaluation.eval_samples=16", "train.evaluation.metrics=[accuracy]", "train.checkpointer.max_to_keep=1",
             "train.checkpointer.keep_best=eval_accuracy", "train.checkpointer.period=3", "optim.lr=0.02"]
    train(tiny, tmp_path / "run", *words)
    measured = {line["step"]: line["eval_accuracy"] for line in lines(tmp_path / "run") if "eval_loss" in line}
    best = max(measured, key=lambda step: (measured[step], -step))
    kept = tmp_path / "run/checkpoints/best"
    assert kept.read_text().strip() == f"step_{best:08}"
    metrics = json.loads((kept.parent / f"step_{best:08}" / "trireme.json").read_text())["metrics"]
    assert metrics["eval_accuracy"] == measured[best] and set(metrics) == {"eval_loss", "eval_accuracy"}
    train(tiny, tmp_path / "run", *words, "train.train_iter=14", "--resume")
    after = {line["step"]: line["eval_accuracy"] for line in lines(tmp_path / "run") if "eval_loss" in line}
    assert kept.read_text().strip() == f"step_{max(after, key=lambda step: (after[step], -step)):08}"
    said = train(tiny, tmp_path / "other", *words, "train.checkpointer.keep_best=eval_f1", code=2).stderr
    assert "eval_f1 is not measured" in said and "eval_loss, eval_accuracy" in said


def test_what_may_change_on_resume(tiny, tmp_path):
    """Whatever says nothing about the weights; all else is refused by its name."""
    families = {
        "gpt2": (["model.attn_pdrop=0", "model.resid_pdrop=0.2", "model.initializer_range=0.05"], "n_head"),
        "llama": (["model.attention_dropout=0.1"], "rope_theta"),
        "gpt_neo": (["model.resid_dropout=0.1", "model.embed_dropout=0.2"], "window_size"),
    }
    keys = json.loads(tiny.read_text())
    models = {"gpt2": keys["model"],
              "llama": {"family": "llama", "vocab_size": 97, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
                        "num_attention_heads": 4, "max_position_embeddings": 64},
              "gpt_neo": {"family": "gpt_neo", "vocab_size": 97, "hidden_size": 32, "num_layers": 2, "num_heads": 4,
                          "max_position_embeddings": 64, "attention_types": [[["global", "local"], 1]], "window_size": 16}}
    for family, (words, fixed) in families.items():
        config, run = tmp_path / f"{family}.json", tmp_path / family
        config.write_text(json.dumps(keys | {"model": models[family]}))
        train(config, run, "train.train_iter=1")
        train(config, run, "train.train_iter=2", "--resume", *words, "optim.weight_decay=0", "optim.lr=0.01")
        said = train(config, run, "train.train_iter=3", "--resume", f"model.{fixed}=2", code=2).stderr
        assert f"model.{fixed} is 2" in said and "resume with the same value" in said, family


def test_weights_that_fit_only_in_part(tiny, tmp_path):
    train(tiny, tmp_path / "a", *layout(), "train.train_iter=1")
    words = [f"model.pretrained={latest(tmp_path / 'a')}", "model.n_layer=5", "model.vocab_size=101", "train.train_iter=1"]
    said = train(tiny, tmp_path / "b", *layout(), *words, code=2).stderr
    assert "model.strict: false" in said and "transformer.wte.weight is [97, 32], expected [101, 32]" in said
    done = train(tiny, tmp_path / "b", *layout(tp=2), *words, "model.strict=false")
    said = done.stdout + done.stderr
    assert "transformer.h.4.attn.c_attn.bias" in said and "transformer.wte.weight is [97, 32]" in said
    train(tiny, tmp_path / "b", *layout(), *words, "model.strict=false", "train.train_iter=2", "--resume")
    assert "model.pretrained" in train(tiny, tmp_path / "c", *layout(), "model.strict=false", code=2).stderr


@pytest.mark.parametrize("kind", ["model", "optimizer"])
def test_one_flipped_bit_is_refused(tiny, tmp_path, kind):
    words = [*layout(dp=2, tp=2), "train.zero_optimization.stage=1"]
    train(tiny, tmp_path / "run", *words, "train.train_iter=2")
    file = sorted(latest(tmp_path / "run").glob(f"{kind}_rank_*.safetensors"))[-1]
    content = bytearray(file.read_bytes())
    content[len(content) * 2 // 3] ^= 16
    file.write_bytes(content)
    said = train(tiny, tmp_path / "run", *words, "train.train_iter=4", "--resume", code=2).stderr
    assert file.name in said and "transformer." in said and "checksum" in said
    assert "is whole" not in said, "what is damaged was called whole"


def test_conversions_hold_one_tensor_at_a_time(tmp_path):
    """Resident memory, mapped files included, stays far below the model's size, whichever way it is converted."""
    model = GPT2Config(n_layer=8, n_embd=640, n_head=4, n_positions=64, vocab_size=500)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(model.to_json_string())
    shapes = {"wte.weight": (500, 640), "wpe.weight": (64, 640), "ln_f.weight": (640,), "ln_f.bias": (640,)}
    for i in range(8):
        for name, shape in (("ln_1.weight", (640,)), ("ln_1.bias", (640,)), ("attn.c_attn.weight", (640, 1920)),
                            ("attn.c_attn.bias", (1920,)), ("attn.c_proj.weight", (640, 640)), ("attn.c_proj.bias", (640,)),
                            ("ln_2.weight", (640,)), ("ln_2.bias", (640,)), ("mlp.c_fc.weight", (640, 2560)),
                            ("mlp.c_fc.bias", (2560,)), ("mlp.c_proj.weight", (2560, 640)), ("mlp.c_proj.bias", (640,))):
            shapes[f"h.{i}.{name}"] = shape
    save_file({f"transformer.{name}": torch.randn(shape) for name, shape in shapes.items()}, folder / "model.safetensors")
    size = (folder / "model.safetensors").stat().st_size
    assert size > 140e6

    base = peak_memory("ckpt", "inspect", folder)
    steps = [("model", "split", "--to", "split", "--tensor-parallel", 2, "--pipeline-parallel", 2),
             ("split", "oslo", "--to", "oslo", "--tensor-parallel", 2, "--pipeline-parallel", 2),
             ("oslo", "bin", "--to", "bin"), ("bin", "hf", "--to", "hf", "--dtype", "bf16", "--max-shard-size", "50MB")]
    for source, target, *words in steps:
        used = peak_memory("ckpt", "convert", tmp_path / source, tmp_path / target, *words) - base
        assert used < size / 4, f"{source} to {target}: {used / 1e6:.0f} MB of {size / 1e6:.0f}"
    used = peak_memory("ckpt", "verify", tmp_path / "split") - base
    assert used < size / 4, f"verify: {used / 1e6:.0f} MB"
    for name in ("split", "oslo", "bin"):
        shutil.rmtree(tmp_path / name)


def test_a_merged_save_holds_one_tensor_at_a_time(tmp_path):
    """Two ranks that write a merged checkpoint have the peak of two that write a split one, but for some tensors."""
    data = learnable_data(tmp_path / "data")
    path = config(tmp_path, data)
    sizes = {"n_layer": 8, "n_embd": 640, "n_head": 4, "n_positions": 64, "vocab_size": 500}

    def peak(kind):
        words = ["train", "--config", path, f"train.output_dir={tmp_path / kind}", *layout(tp=2), "train.train_iter=1",
                 f"train.checkpointer.format={kind}", "optim.name=sgd", *(f"model.{key}={value}" for key, value in sizes.items())]
        return peak_memory(*words)

    split, merged = peak("split"), peak("merged")
    size = (latest(tmp_path / "merged") / "model.safetensors").stat().st_size
    assert size > 140e6
    assert merged - split < size / 4, f"{merged / 1e6:.0f} MB against {split / 1e6:.0f} MB, of {size / 1e6:.0f} MB"
