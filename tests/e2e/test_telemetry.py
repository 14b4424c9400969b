"""What a run tells about itself, ramp-up of the batch, and DeepSpeed's configuration, through the program."""

import csv
import json
import socket
import subprocess
import time
import urllib.request

from support import PROGRAM, apart, latest, layout, lines, losses, train, trireme

PHASES = ("data", "forward", "backward", "wait", "optimizer", "checkpoint")


def free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def test_where_the_time_goes(tiny, tmp_path):
    done = train(tiny, tmp_path, *layout(dp=2, pp=2), "train.train_iter=4", "train.checkpointer.period=2",
                 "train.telemetry.csv=true", "train.num_accumulation_steps=4", "train.train_micro_batch_size=1",
                 "train.global_batch_size=null")
    assert "where 4 steps went" in done.stderr and "computed longest" in done.stderr
    for line in lines(tmp_path):
        # The parts are a mean over ranks that begin a step at moments of their own.
        parts = sum(line[f"{phase}_seconds"] for phase in PHASES) - line["checkpoint_seconds"]
        assert 0.5 * line["step_seconds"] < parts < 3 * line["step_seconds"], line
        assert 0 <= line["slowest_rank"] < 4 and line["slowest_excess"] >= 0
        assert 0 < line["model_flops_utilization"] < 1
    assert lines(tmp_path)[1]["checkpoint_seconds"] < 1e-3 < lines(tmp_path)[2]["checkpoint_seconds"]
    with open(tmp_path / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["loss"]) for row in rows] == list(losses(tmp_path).values())

    report = json.loads((tmp_path / "telemetry.json").read_text())
    assert report["steps"] == 4 and [rank["rank"] for rank in report["ranks"]] == [0, 1, 2, 3]
    # Two checkpoints: one that a later step's line has, and the last one, which none has.
    written = sum(line["checkpoint_seconds"] for line in lines(tmp_path))
    assert sum(rank["seconds"]["checkpoint"] for rank in report["ranks"]) / 4 > written + 1e-4
    for rank in report["ranks"]:
        assert rank["seconds"]["forward"] > 0 and rank["seconds"]["backward"] > 0
        sent = rank["bytes_sent"]
        assert sent["pipeline"]["p2p"] > 0 and sent["data"]["all_reduce"] + sent["data"]["reduce_scatter"] > 0
        assert sum(sent["tensor"].values()) == 0
        fixed = sum(rank["memory"]["expected"].values())
        assert fixed < rank["memory"]["peak"]


def test_a_known_peak_is_taken(tiny, tmp_path):
    train(tiny, tmp_path, "train.train_iter=2", "train.telemetry.peak_tflops=0.5")
    report = json.loads((tmp_path / "telemetry.json").read_text())
    assert report["peak_flops"] == 0.5e12
    line = lines(tmp_path)[-1]
    expected = report["flops_per_sample"] * 8 / line["step_seconds"] / 0.5e12
    assert abs(line["model_flops_utilization"] / expected - 1) < 1e-6


def test_prometheus_reads_a_run(tiny, tmp_path):
    port = free_port()
    process = subprocess.Popen([PROGRAM, "train", "--config", tiny, f"train.output_dir={tmp_path}", "train.train_iter=100000",
                                f"train.telemetry.prometheus_port={port}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        text, end = "", time.time() + 60
        while "trireme_step " not in text and time.time() < end:
            time.sleep(0.1)
            try:
                text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
            except OSError:
                pass
        values = dict(line.split() for line in text.splitlines() if not line.startswith("#"))
        assert int(values["trireme_step"]) >= 1 and float(values["trireme_loss"]) > 1
        taken = train(tiny, tmp_path / "other", f"train.telemetry.prometheus_port={port}", code=2)
        assert "prometheus_port" in taken.stderr
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_ramp_up_on_any_layout(tiny, tmp_path):
    rampup = ["train.batch_rampup={start: 2, increment: 3, samples: 12}", "train.train_iter=6"]
    train(tiny, tmp_path / "one", *rampup)
    assert [line["samples"] for line in lines(tmp_path / "one")] == [2, 4, 6, 11, 16, 24]
    train(tiny, tmp_path / "four", *layout(dp=2, pp=2), *rampup)
    train(tiny, tmp_path / "four", *layout(dp=2, pp=2), *rampup, "train.train_iter=9", "--resume")
    train(tiny, tmp_path / "nine", *rampup, "train.train_iter=9")
    assert apart(list(losses(tmp_path / "one").values()), list(losses(tmp_path / "four").values())[:6]) < 1e-5
    assert [line["samples"] for line in lines(tmp_path / "four")] == [2, 4, 6, 11, 16, 24, 32, 40, 48]
    done = train(tiny, tmp_path / "bad", "train.batch_rampup={start: 3, increment: 3, samples: 12}", code=2)
    assert "increment that divides 5" in done.stderr


def test_a_resumed_run_of_steps_takes_whole_ones(tiny, tmp_path):
    train(tiny, tmp_path, "train.train_iter=2", "train.global_batch_size=8")
    train(tiny, tmp_path, "train.train_iter=4", "train.global_batch_size=2", "--resume")
    assert [line["samples"] for line in lines(tmp_path)] == [8, 16, 18, 20]


def test_deepspeed(tiny, tmp_path):
    given = tmp_path / "ds.json"
    given.write_text(json.dumps({
        "train_batch_size": 4, "train_micro_batch_size_per_gpu": "auto", "gradient_clipping": 0.25,
        "zero_optimization": {"stage": 1, "overlap_comm": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 5e-4, "betas": [0.8, 0.9]}}}))
    done = trireme("train", "--config", tiny, "--deepspeed", given, f"train.output_dir={tmp_path / 'run'}",
                   "train.train_iter=2", "optim.lr=2e-4")
    assert "without counterpart here, no effect: zero_optimization.overlap_comm" in done.stderr
    resolved = (tmp_path / "run" / "config.yaml").read_text()
    for text in ("global_batch_size: 4", "lr: 0.0002", "betas: [0.8, 0.9]", "clip_grad_max_norm: 0.25"):
        assert text in resolved
    given.write_text('{"zero_optimization": {"offload_param": {"device": "nvme"}}}')
    done = trireme("train", "--config", tiny, "--deepspeed", given, "--dry-run", code=2)
    assert "zero_optimization.offload_param" in done.stderr
    trireme("train", "--config", tiny, "--deepspeed", tmp_path / "none.json", "--dry-run", code=4)


def test_norms_of_layers(tiny, tmp_path):
    """Each layer's norms make up the norm of all, the same on any layout; off steps carry none."""
    keys = ["train.train_iter=4", "train.telemetry.layer_norms=2", "train.dtype=fp64"]
    train(tiny, tmp_path / "one", *keys)
    train(tiny, tmp_path / "many", *keys, *layout(dp=2, tp=2, pp=2))
    one, many = lines(tmp_path / "one"), lines(tmp_path / "many")
    for alone, together in zip(one, many):
        if "loss" not in alone:
            continue
        assert ("layers" in alone) == (alone["step"] % 2 == 0)
        if "layers" not in alone:
            continue
        total = sum(layer["grad_norm"] ** 2 for layer in alone["layers"].values()) ** 0.5
        assert abs(total / alone["grad_norm"] - 1) < 1e-9
        assert list(alone["layers"]) == list(together["layers"]) and "embeddings" in alone["layers"]
        for name, layer in alone["layers"].items():
            for key, value in layer.items():
                assert abs(together["layers"][name][key] - value) <= 1e-8 * value, (name, key)


def test_optimizer_state_on_disk(tiny, tmp_path):
    """The same losses and checkpoints; nothing is left in the folder; a folder that is not there is refused."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    train(tiny, tmp_path / "memory", "train.train_iter=4")
    train(tiny, tmp_path / "disk", "train.train_iter=4", f"optim.offload={folder}")
    assert losses(tmp_path / "memory") == losses(tmp_path / "disk")
    trireme("ckpt", "diff", latest(tmp_path / "memory"), latest(tmp_path / "disk"))
    assert not list(folder.iterdir())
    refused = train(tiny, tmp_path / "none", f"optim.offload={tmp_path}/missing", code=4)
    assert "missing" in refused.stderr


def test_recompute_counts_of_stages_are_checked(tiny, tmp_path):
    for count, pp, more, words in (("[1]", 2, [], "give a count for each pipeline stage, 2 in all"),
                                   ("[1, 0]", 2, ["train.dist.schedule=auto"], "name a schedule")):
        done = train(tiny, tmp_path, *layout(pp=pp), f"train.activation_checkpoint={{enabled: true, per_stage: {count}}}", *more,
                     code=2)
        assert "per_stage" in done.stderr and words in done.stderr, done.stderr
