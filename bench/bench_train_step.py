"""A training step of GPT-2 124M (fp32, 4 x 64 tokens) against PyTorch eager on the same number of threads."""

import os
import sys

from harness import ROOT, Steps, benchmark, program, row

BATCH, SEQ = 4, 64
# glibc gives freed tensors back to the system at once, unless it is told to keep them.
TUNED = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "17179869184",
         "MALLOC_TOP_PAD_": "1073741824"}


def measure(label, dropout):
    arguments = [str(len(os.sched_getaffinity(0))), str(BATCH), str(SEQ), str(dropout)]
    peer = [sys.executable, str(ROOT / "bench/train_step_peer.py"), *arguments]
    for name, environment in (("as shipped", {}), ("allocator tuned", TUNED)):
        ours, theirs = Steps([program("train_step"), *arguments]), Steps(peer, environment)
        yield row(f"train step{label}, PyTorch {name}", "s", ours=ours, peer=theirs)
        peaks = float(ours.end()) / 2**20, float(theirs.end()) / 2**20
        if not environment:
            yield {"name": f"train step{label}, peak resident memory", "ours": peaks[0], "peer": peaks[1],
                   "ratio": peaks[1] / peaks[0], "unit": "MiB", "pairs": 1}


@benchmark("train_step")
def train_step():
    yield from measure("", 0.0)
    yield from measure(" with dropout", 0.1)
