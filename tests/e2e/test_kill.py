"""kill -9 of a random rank at a random moment, also while a checkpoint is written beside training: the others end
naming it, and the resumed run equals an undisturbed one bit for bit, its losses and its last weights; on another
layout within rounding. TRIREME_KILLS is how often (3, and 50 in the full suite)."""

import contextlib
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import time

import pytest

from support import PROGRAM, apart, latest, layout, losses, train, trireme

KILLS = int(os.environ.get("TRIREME_KILLS", 3))
LAYOUTS = [[*words, f"train.zero_optimization.stage={stage}", "train.checkpointer.period=4"]
           for words, stage in ((layout(dp=2, pp=2), 2), (layout(tp=2, pp=2), 1), (layout(dp=2, tp=2), 3))]
STEPS = 24


@pytest.fixture(scope="module")
def undisturbed(tiny, tmp_path_factory):
    """The losses of a layout's run, and its last checkpoint."""
    known = {}

    def of(number):
        if number not in known:
            folder = tmp_path_factory.mktemp("undisturbed")
            train(tiny, folder, *LAYOUTS[number], f"train.train_iter={STEPS}")
            known[number] = losses(folder), latest(folder)
        return known[number]

    return of


def children(pid):
    """The processes that `pid` started."""
    tasks = pathlib.Path(f"/proc/{pid}/task")
    return [int(child) for task in tasks.glob("*/children") for child in task.read_text().split()]


def steps_done(folder):
    metrics = folder / "metrics.jsonl"
    return metrics.read_text().count('"loss"') if metrics.exists() else 0


def saving(folder):
    """Whether a checkpoint is being written: a folder that `latest` does not name yet."""
    checkpoints = folder / "checkpoints"
    if not checkpoints.exists():
        return False
    names = [entry.name for entry in checkpoints.iterdir() if entry.is_dir()]
    return any(not name.startswith("step_") for name in names)


@pytest.mark.parametrize("kill", range(KILLS))
def test_kill(tiny, undisturbed, tmp_path, kill):
    number = (kill + kill // len(LAYOUTS)) % len(LAYOUTS)
    want, last = undisturbed(number)
    # The second of three saves while training goes on, and so does every other one of many.
    words = [*LAYOUTS[number], f"train.train_iter={STEPS}", *(["train.checkpointer.async=true"] if kill % 2 else [])]
    dice = random.Random(kill)
    shared = set(os.listdir("/dev/shm"))
    folder = tmp_path / "run"
    command = [PROGRAM, "train", "--config", tiny, f"train.output_dir={folder}", *words]
    run = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           text=True, stdin=subprocess.DEVNULL)
    # Every third kill waits for a checkpoint that is being written, the others for a step.
    moment = dice.randrange(5, STEPS - 2)
    deadline = time.time() + 60
    while run.poll() is None and time.time() < deadline:
        if kill % 3 == 1 and steps_done(folder) >= 4 and saving(folder):
            ranks = children(run.pid)
            for rank in ranks:
                os.kill(rank, signal.SIGSTOP)
            if saving(folder):
                break
            for rank in ranks:
                os.kill(rank, signal.SIGCONT)
        elif kill % 3 != 1 and steps_done(folder) >= moment:
            time.sleep(dice.random() * 0.01)
            break
        time.sleep(0.001)
    ranks = children(run.pid)
    assert len(ranks) == 4, f"{ranks}: {run.communicate()[0] if run.poll() is not None else 'running'}"
    victim = dice.choice(ranks)
    os.kill(victim, signal.SIGKILL)
    killed = time.time()
    for rank in ranks:
        with contextlib.suppress(ProcessLookupError):
            os.kill(rank, signal.SIGCONT)
    said, _ = run.communicate(timeout=30)
    assert time.time() - killed < 5
    assert run.returncode not in (0, None)
    told = [line for line in said.splitlines() if not line.startswith("[rank ")]
    assert f"rank {ranks.index(victim)} was killed by signal 9 (SIGKILL)" in told[0] and all("resume with" in line for line in told[1:]), said
    assert any("error: " in log.read_text() for log in folder.glob("log.rank*.txt"))
    assert not any(pathlib.Path(f"/proc/{pid}").exists() for pid in ranks)
    assert set(os.listdir("/dev/shm")) <= shared

    if kill == 1:
        shutil.copytree(folder, tmp_path / "other")
    train(tiny, folder, *words, "--resume")
    assert losses(folder) == want
    trireme("ckpt", "diff", latest(folder), last)
    left = {entry.name for entry in (folder / "checkpoints").iterdir()}
    assert all(name == "latest" or name.startswith("step_") for name in left), left
    if kill == 1:
        train(tiny, tmp_path / "other", *layout(dp=2, tp=2), "train.train_iter=24", "train.checkpointer.async=true",
              "--resume")
        drawn = losses(tmp_path / "other")
        assert sorted(drawn) == sorted(want)
        assert apart(list(want.values())[:10], list(drawn.values())[:10]) < 1e-5
        assert apart(list(want.values()), list(drawn.values())) < 1e-3


def test_a_stalled_rank_is_named_with_its_place_in_the_schedule(tiny, tmp_path):
    command = [PROGRAM, "train", "--config", tiny, f"train.output_dir={tmp_path}", *layout(pp=2), "train.train_iter=100000",
               "train.dist.timeout_s=3"]
    run = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                           stdin=subprocess.DEVNULL)
    while run.poll() is None and steps_done(tmp_path) < 3:
        time.sleep(0.01)
    ranks = children(run.pid)
    os.kill(ranks[1], signal.SIGSTOP)
    stopped = time.time()
    said, _ = run.communicate(timeout=60)
    assert time.time() - stopped < 3 + 10
    assert run.returncode not in (0, None)
    assert not any(pathlib.Path(f"/proc/{pid}").exists() for pid in ranks)
    told = (tmp_path / "log.rank0.txt").read_text()
    assert re.search(r"pipeline edge from stage 1 to stage 0 \(chunks 0 and 1\), RecvB of micro-batch \d", told), told
    assert re.search(r"stage 0 was at 0RecvB\d, action \d+ of \d+ in schedule 1f1b", told), told
    assert "waited 3.00 s for rank 1" in told and "pipeline edge from stage 1 to stage 0" in said, said


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("asynchronous", ["false", "true"])
def test_signal_saves_and_says_how_to_go_on(tiny, undisturbed, tmp_path, asynchronous, sent):
    command = [PROGRAM, "train", "--config", tiny, f"train.output_dir={tmp_path}", *LAYOUTS[1],
               f"train.train_iter={STEPS}", f"train.checkpointer.async={asynchronous}"]
    run = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           text=True, stdin=subprocess.DEVNULL)
    while run.poll() is None and steps_done(tmp_path) < 6:
        time.sleep(0.01)
    run.send_signal(sent)
    said, _ = run.communicate(timeout=60)
    assert run.returncode == 0, said
    assert "--resume" in said
    assert 6 <= max(losses(tmp_path)) < STEPS
    train(tiny, tmp_path, *LAYOUTS[1], f"train.train_iter={STEPS}", "--resume")
    assert losses(tmp_path) == undisturbed(1)[0]
