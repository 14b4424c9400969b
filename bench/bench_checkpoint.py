"""Saving and loading GPT-2 124M with AdamW's state (1.5 GB in fp32) against torch.save and torch.load, and how long a
save that goes on beside training keeps it waiting, against a copy of the state."""

import os
import pathlib
import sys
import tempfile

from harness import ROOT, Steps, benchmark, program, row


@benchmark("checkpoint")
def checkpoint():
    threads = str(len(os.sched_getaffinity(0)))
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build", prefix="bench-checkpoint-") as folder:  # on a disk, unlike /tmp
        folders = [pathlib.Path(folder) / name for name in ("ours", "peer")]
        for each in folders:
            each.mkdir()
        ours = Steps([program("checkpoint"), threads, str(folders[0])])
        peer = Steps([sys.executable, str(ROOT / "bench/checkpoint_peer.py"), threads, str(folders[1])])
        gigabytes = ours("bytes") / 1e9
        assert abs(gigabytes - peer("bytes") / 1e9) < 1e-3
        rate = lambda side, action: lambda: gigabytes / side(action)
        yield row("checkpoint, save until durable", "GB/s", better="more", ours=rate(ours, "save"), peer=rate(peer, "save"))
        yield row("checkpoint, load, checksums compared", "GB/s", better="more", ours=rate(ours, "load"),
                  peer=rate(peer, "load"))
        yield row("checkpoint, asynchronous save blocks, PyTorch: a copy", "s", ours=lambda: ours("start"),
                  peer=lambda: peer("copy"))
        ours.end(), peer.end()
