"""Fused kernels, forward and backward, against PyTorch's operations on the same number of threads."""

import os
import sys

from harness import ROOT, Steps, benchmark, program, row

ROWS, VOCABULARY, FEATURES = 1024, 50304, 768
SEQ = 4096


def measure(name, *arguments):
    """The row, and the peak bytes of ours, which come with the last answer."""
    arguments = [str(len(os.sched_getaffinity(0))), *map(str, arguments)]
    ours = Steps([program("kernel_step"), *arguments])
    theirs = Steps([sys.executable, str(ROOT / "bench/kernel_step_peer.py"), *arguments])
    measured = row(name, "s", ours=lambda: ours(1), peer=lambda: theirs(1))
    theirs.end()
    return measured, float(ours.end())


@benchmark("kernels")
def kernels():
    measured, peak = measure(f"cross entropy with head, {ROWS} x {VOCABULARY}", "head_loss", ROWS, VOCABULARY, FEATURES)
    yield measured
    logits = ROWS * VOCABULARY * 4
    yield {"name": f"cross entropy with head, {ROWS} x {VOCABULARY}, peak, peer: the logits", "ours": peak / 2**20,
           "peer": logits / 2**20, "ratio": logits / peak, "unit": "MiB", "pairs": 1}
    for name, dropout in (("", 0.0), (" with dropout", 0.1)):
        yield measure(f"attention{name}, {SEQ} tokens, 12 heads", "attention", SEQ, dropout)[0]
