"""The program as a user runs it: `trireme(...)` and what the tests read of its results."""

import json
import os
import pathlib
import struct
import subprocess
import sys

import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("TRIREME_PROGRAM", str(ROOT / "build/release/bin/trireme"))


def trireme(*words, code=0, timeout=120, **options):
    """Runs the program and expects the exit code; returns the completed process (text)."""
    done = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=timeout,
                          stdin=subprocess.DEVNULL, **options)
    assert done.returncode == code, (
        f"trireme {' '.join(map(str, words))}: exit {done.returncode}, expected {code}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done


def peak_memory(*words):
    """Runs the program; returns the peak of its resident memory in bytes."""
    done = subprocess.run([sys.executable, ROOT / "tests/peak_memory.py", PROGRAM, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, (words, done.stderr)
    return int(done.stdout.split()[-1])


def json_lines(text):
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def layout(dp=1, tp=1, pp=1):
    """The words that ask for a layout, and its number of ranks."""
    return ["--ranks", dp * tp * pp, f"train.dist.data_parallel_size={dp}", f"train.dist.tensor_parallel_size={tp}",
            f"train.dist.pipeline_parallel_size={pp}"]


def train(config, folder, *words, **options):
    return trireme("train", "--config", config, f"train.output_dir={folder}", *words, **options)


def lines(folder):
    return json_lines((pathlib.Path(folder) / "metrics.jsonl").read_text())


def losses(folder):
    """{step: loss}; a step that a resumed run repeated counts once, its last time."""
    return {line["step"]: line["loss"] for line in lines(folder) if "loss" in line}


def latest(folder):
    checkpoints = pathlib.Path(folder) / "checkpoints"
    return checkpoints / (checkpoints / "latest").read_text().strip()


def apart(a, b):
    """The largest relative distance of two sequences."""
    assert len(a) == len(b) and a
    return max(abs(x - y) / max(abs(x), abs(y), 1e-30) for x, y in zip(a, b))


def write_indexed(prefix, documents):
    """An indexed dataset (MMIDIDX, int32) of the token lists, written without trireme."""
    sizes = numpy.array([len(d) for d in documents], dtype=numpy.int32)
    pointers = (numpy.cumsum(sizes, dtype=numpy.int64) - sizes) * 4
    numpy.concatenate(documents).astype(numpy.int32).tofile(f"{prefix}.bin")
    with open(f"{prefix}.idx", "wb") as index:
        index.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, len(sizes), len(sizes) + 1))
        index.write(sizes.tobytes() + pointers.tobytes() + numpy.arange(len(sizes) + 1, dtype=numpy.int64).tobytes())
    return str(prefix)


def learnable_data(prefix, tokens=40000, vocab=97, seed=1, documents=40):
    """Each token is five times the one before plus a little noise, so a model can learn it."""
    noise = numpy.random.default_rng(seed).integers(0, 7, tokens)
    text = numpy.zeros(tokens, dtype=numpy.int64)
    for i in range(1, tokens):
        text[i] = (5 * text[i - 1] + noise[i]) % vocab
    return write_indexed(prefix, numpy.array_split(text, documents))


def config(folder, data, steps=12, **train_keys):
    """A tiny GPT-2's configuration, written as JSON (which is YAML too)."""
    keys = {
        "model": {"family": "gpt2", "n_layer": 4, "n_embd": 32, "n_head": 4, "n_positions": 64, "vocab_size": 97,
                  "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1},
        "data": {"train": [{"path": data, "weight": 1.0}], "valid": [{"path": data}], "seq_length": 32},
        "train": {"seed": 3, "train_iter": steps, "train_micro_batch_size": 1, "global_batch_size": 8,
                  "log_period": 1, "checkpointer": {"period": 1000}, "evaluation": {"enabled": False},
                  "scheduler": {"name": "warmup_cosine", "warmup_ratio": 0.2}, **train_keys},
        "optim": {"name": "adamw", "lr": 1e-3, "weight_decay": 0.1, "clip_grad_max_norm": 1.0},
    }
    path = pathlib.Path(folder) / "config.yaml"
    path.write_text(json.dumps(keys))
    return path
