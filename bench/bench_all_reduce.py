"""All-reduce between two processes: shared memory against PyTorch's Gloo."""
import subprocess
import sys

from harness import ROOT, benchmark, program, row

RANKS = 2


def measure(command):
    """A function that runs the command and returns the number it prints."""
    def run():
        out = subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout
        return float(out)
    return run


@benchmark("all_reduce")
def all_reduce():
    for name, size, times in (("1 KiB", 1 << 10, 2000), ("1 MiB", 1 << 20, 200), ("64 MiB", 64 << 20, 10)):
        ours = [program("all_reduce"), RANKS, size, times]
        peer = measure([sys.executable, ROOT / "bench/all_reduce_peer.py", RANKS, size, times])
        yield row(f"all-reduce {name}, {RANKS} processes, against Gloo", "us", ours=measure(ours), peer=peer)
        if size > 1 << 10:
            yield row(f"all-reduce {name}, shared buffers, against Gloo", "us", ours=measure([*ours, "shared"]), peer=peer)
