"""Mixed precision as a user runs it: masters in checkpoints, every precision to any other, the loss scale, the
divergence watch and moving averages."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from support import apart, latest, layout, lines, losses, train, trireme

CONSTANT = ["train.scheduler.name=warmup_constant", "train.scheduler.warmup_iter=2", "train.scheduler.warmup_ratio=0"]
BF16 = ["train.amp.dtype=bf16"]
FP16 = ["train.amp.dtype=fp16"]
SPLIT = [*layout(dp=2, tp=2), "train.zero_optimization.stage=1"]


@pytest.fixture(scope="module")
def runs(tiny, tmp_path_factory):
    """The same run in three precisions, on two layouts, and half of the bf16 ones."""
    folder = tmp_path_factory.mktemp("runs")
    for name, words in [("fp32", []), ("bf16", BF16), ("fp16", FP16), ("bf16-split", [*BF16, *SPLIT]),
                        ("bf16-travel", [*BF16, *SPLIT, "train.amp.reduce_dtype=bf16"])]:
        train(tiny, folder / name, *CONSTANT, *words)
    for name, words in [("bf16-half", BF16), ("bf16-split-half", [*BF16, *SPLIT])]:
        train(tiny, folder / name, *CONSTANT, *words, "train.train_iter=6")
    return folder


def resumed(runs, tiny, tmp_path, half, *words):
    shutil.copytree(runs / half, tmp_path / "run")
    train(tiny, tmp_path / "run", *CONSTANT, *words, "--resume")
    return tmp_path / "run"


def equal(a, b):
    found = json.loads(trireme("ckpt", "diff", a, b, "--json").stdout)
    return found["equal"] and found["max_abs"] == 0


@pytest.mark.parametrize("name,bound", [("bf16", 5e-3), ("bf16-split", 5e-3), ("bf16-travel", 5e-3),
                                        ("fp16", 5e-4)])
def test_losses_follow_fp32(runs, name, bound):
    got, want = losses(runs / name), losses(runs / "fp32")
    assert got != want and apart(list(got.values()), list(want.values())) < bound
    assert want[12] < want[1] - 0.05


@pytest.mark.parametrize("half,words,whole", [("bf16-half", BF16, "bf16"),
                                              ("bf16-split-half", [*BF16, *SPLIT], "bf16-split")])
def test_resume_is_bit_exact(tiny, runs, tmp_path, half, words, whole):
    run = resumed(runs, tiny, tmp_path, half, *words)
    assert losses(run) == losses(runs / whole)
    assert equal(latest(run), latest(runs / whole))


@pytest.mark.parametrize("words", [[], FP16, [*BF16, *layout(tp=2, pp=2)], ["train.dtype=fp64"]])
def test_bf16_goes_on_in_any_precision(tiny, runs, tmp_path, words):
    got = losses(resumed(runs, tiny, tmp_path, "bf16-half", *words))
    assert apart(list(got.values()), list(losses(runs / "bf16").values())) < 5e-3


def test_checkpoints_hold_the_masters(tiny, runs, tmp_path):
    seen = json.loads(trireme("ckpt", "inspect", latest(runs / "bf16"), "--json").stdout)
    assert {tensor["dtype"] for tensor in seen["tensors"]} == {"fp32"}
    # What fp32 begins with is what bf16 rounds: a run without a step changes no bit of either.
    for name, words in [("fp32", []), ("bf16", BF16)]:
        train(tiny, tmp_path / name, *words, "optim.lr=0", "optim.weight_decay=0", "train.train_iter=1")
        trireme("ckpt", "convert", tmp_path / name, tmp_path / f"{name}-hf", "--to", "hf")
    assert equal(tmp_path / "fp32-hf", tmp_path / "bf16-hf")
    # As does a run that begins with the weights of another.
    train(tiny, tmp_path / "more", *BF16, "optim.lr=0", "train.train_iter=1",
          f"model={{pretrained: {latest(runs / 'fp32')}}}")
    trireme("ckpt", "convert", latest(tmp_path / "more"), tmp_path / "a", "--to", "hf")
    trireme("ckpt", "convert", latest(runs / "fp32"), tmp_path / "b", "--to", "hf")
    assert equal(tmp_path / "a", tmp_path / "b")
    trireme("ckpt", "convert", latest(runs / "bf16"), tmp_path / "low", "--to", "hf", "--dtype", "bf16")
    assert {t.dtype for t in load_file(tmp_path / "low/model.safetensors").values()} == {torch.bfloat16}


def test_the_loss_scale_falls_until_nothing_overflows(tiny, tmp_path):
    top = 2.0**32
    done = train(tiny, tmp_path, *FP16, f"train.amp.initial_scale={top}", "train.amp.hysteresis=2",
                 "train.amp.growth_interval=4", "train.amp.report_overflow=true", "train.train_iter=30",
                 "train.checkpointer.period=20")
    steps = [line for line in lines(tmp_path) if "loss" in line]
    scale, clean, overflows, taken = top, 0, 0, 0
    for line in steps:
        assert line["loss_scale"] == scale
        if line["grad_norm"] == "nan":
            clean, overflows = 0, overflows + 1
            if overflows >= 2:
                scale /= 2
        else:
            clean, taken = clean + 1, taken + 1
            if clean == 4:
                clean, overflows, scale = 0, 0, min(scale * 2, 2.0**32)
    assert overflows or clean and 5 < taken < 30
    # The learning rate waits for a step that is taken.
    skipped = [line["grad_norm"] == "nan" for line in steps]
    for i in range(1, 30):
        if skipped[i - 1]:
            assert steps[i]["lr"] == steps[i - 1]["lr"]
    assert skipped[0] and "overflowed at loss scale 4294967296, first that of " in done.stderr
    # The scale goes on where a checkpoint left it.
    for step in list((tmp_path / "checkpoints").iterdir()):
        if step.name == "step_00000030":
            shutil.rmtree(step)
    (tmp_path / "checkpoints/latest").write_text("step_00000020")
    train(tiny, tmp_path, "--resume", *FP16, f"train.amp.initial_scale={top}", "train.amp.hysteresis=2",
          "train.amp.growth_interval=4", "train.train_iter=30")
    again = [line for line in lines(tmp_path) if "loss" in line]
    assert [(l["loss"], l["loss_scale"]) for l in again] == [(l["loss"], l["loss_scale"]) for l in steps]


@pytest.mark.parametrize("words,limit", [([], 0), (["train.divergence={action: skip, limit: 3}"], 3)])
def test_a_divergence_stops_the_run(tiny, tmp_path, words, limit):
    done = train(tiny, tmp_path, "optim.lr=1e38", *CONSTANT, *words, *layout(dp=2), code=2)
    drawn = lines(tmp_path)
    first = min(line["step"] for line in drawn if line["grad_norm"] == "nan")
    assert len(drawn) == first + limit
    last = first + limit
    assert f"step {last}: the loss is" in done.stderr
    assert f"its samples are {8 * (last - 1)} to {8 * last - 1} of the run" in done.stderr
    assert ("skipped (3 of at most 3 in a row)" in done.stderr) == (limit > 0)


def test_a_fixed_scale_that_overflows_is_a_divergence(tiny, tmp_path):
    done = train(tiny, tmp_path, *FP16, "train.amp.loss_scale=1e9", code=2)
    assert "at loss scale 1000000000, which cannot fall" in done.stderr


def test_moving_averages(tiny, tmp_path):
    words = ["optim.ema.decay=0.75", "train.checkpointer={period: 1, max_to_keep: 9, format: merged}", *BF16]
    train(tiny, tmp_path / "run", *words, "train.train_iter=3", *SPLIT)
    averages, weights = [], []
    for step in (1, 2, 3):
        folder = tmp_path / f"run/checkpoints/step_{step:08}"
        weights.append(load_file(folder / "model.safetensors"))
        averages.append(load_file(folder / "optimizer.safetensors"))
        trireme("ckpt", "convert", folder, tmp_path / f"ema{step}", "--to", "hf", "--ema")
    for name, average in load_file(tmp_path / "ema3/model.safetensors").items():
        assert torch.equal(average, averages[2][name + ".ema"])
        for step in (1, 2):
            want = 0.75 * averages[step - 1][name + ".ema"] + 0.25 * weights[step][name]
            assert torch.allclose(averages[step][name + ".ema"], want, rtol=1e-5, atol=1e-7), name
    # Evaluated in the weights' place, during the run and afterwards; the weights go on as they were.
    judge = ["train.evaluation.enabled=true", "train.evaluation.eval_samples=16", "train.dtype=fp32"]
    train(tiny, tmp_path / "judged", *words, *judge, "train.evaluation.eval_period=1", "train.evaluation.ema=true",
          "train.train_iter=3", *SPLIT)
    assert losses(tmp_path / "judged") == losses(tmp_path / "run")
    during = [line["eval_loss"] for line in lines(tmp_path / "judged") if "eval_loss" in line]
    alone = [json.loads(trireme("eval", "--config", tiny, *judge, *more, "--checkpoint",
                                tmp_path / f"judged/checkpoints/step_{step:08}", "--ema", "--json").stdout)["loss"]
             for step, more in ((1, []), (2, SPLIT), (3, ["train.amp.dtype=bf16"]))]
    assert apart(during, alone) < 5e-3
    plain = json.loads(trireme("eval", "--config", tiny, *judge, "--checkpoint", tmp_path / "judged", "--json").stdout)["loss"]
    assert abs(plain / alone[2] - 1) > 1e-5
    assert "optim.ema.decay" in train(tiny, tmp_path / "none", *judge, "train.evaluation.ema=true", code=2).stderr
    # A run without averages has none to give; one that begins to keep them starts from its weights.
    train(tiny, tmp_path / "plain", "train.train_iter=2")
    done = trireme("ckpt", "convert", tmp_path / "plain", tmp_path / "none", "--to", "hf", "--ema", code=2)
    assert "optim.ema.decay" in done.stderr
    train(tiny, tmp_path / "plain", "train.train_iter=3", "optim.ema.decay=0", "--resume")
    trireme("ckpt", "convert", tmp_path / "plain", tmp_path / "now", "--to", "hf", "--ema")
    trireme("ckpt", "convert", tmp_path / "plain", tmp_path / "own", "--to", "hf")
    assert equal(tmp_path / "now", tmp_path / "own")
