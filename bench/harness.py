"""Measures ours against a peer on the same machine, in turns, so that both see the same weather.

A file bench/bench_NAME.py declares benchmarks:

    @benchmark("tokenizer_encode")
    def encode():
        yield row("encode, 1 thread", "MB/s", better="more", ours=run_ours, peer=run_peer)

`ours` and `peer` take no argument and return one measured number in the row's unit. `row` calls them in
turns, `pairs` times after one uncounted turn each. The ratio is the median over the pairs of how many
times better ours is: above 1 is better, whatever the unit.
"""

import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BENCHMARKS = {}  # name -> function that yields rows
PAIRS = 5        # of a row that asks for no other number; `--pairs` sets it


def program(name="trireme"):
    """The path of a program of the build, as a string."""
    bin_folder = os.environ.get("TRIREME_BIN", ROOT / "build/release/bin")
    return str(pathlib.Path(bin_folder) / name)


def benchmark(name):
    """Registers a function that yields rows under `name`."""
    def register(function):
        BENCHMARKS[name] = function
        return function
    return register


def alternate(ours, peer, pairs=None, better="less", warm_up=True):
    """Medians of both and of their ratio over at least `pairs` turns: {ours, peer, ratio, pairs}."""
    pairs = pairs or PAIRS
    if better not in ("less", "more"):
        raise ValueError(f"better is {better!r}; it is 'less' or 'more'")
    if warm_up:
        ours(), peer()
    turns = [(float(ours()), float(peer())) for _ in range(pairs)]
    ratios = [(b / a if better == "less" else a / b) for a, b in turns]
    return {"ours": statistics.median(a for a, _ in turns), "peer": statistics.median(b for _, b in turns),
            "ratio": statistics.median(ratios), "pairs": pairs}


def row(name, unit, *, ours, peer, better="less", pairs=None, warm_up=True):
    """One line of the table, as the fields of `trireme bench --json`."""
    print(f"bench: {name} ...", file=sys.stderr, flush=True)
    measured = alternate(ours, peer, pairs, better, warm_up)
    print(f"bench:   {measured['ours']:.4g} {unit}, the peer {measured['peer']:.4g} {unit}: {measured['ratio']:.2f}x",
          file=sys.stderr, flush=True)
    return {"name": name, "ours": measured["ours"], "peer": measured["peer"], "ratio": measured["ratio"],
            "unit": unit, "pairs": measured["pairs"]}


class Steps:
    """A process that runs steps when asked to and answers with the seconds of the fastest; `bench_*.py` use it as one
    side of a row."""

    def __init__(self, command, environment=None):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=os.environ | (environment or {}))

    def __call__(self, steps=3):
        print(steps, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def end(self):
        """Closes its input; what it says last, where it says something."""
        self.process.stdin.close()
        last = self.process.stdout.readline()
        self.process.wait()
        return last


def train_step(job, ranks=1):
    """Steps of train_step.cc's job on so many ranks, one process each."""
    launch = [program(), "launch", "--nproc", str(ranks), "--no-prefix", "--"] if ranks > 1 else []
    return Steps([*launch, program("train_step"), json.dumps(job)])


def processor(key):
    """A field of /proc/cpuinfo."""
    info = pathlib.Path("/proc/cpuinfo").read_text()
    return next((l.split(":", 1)[1].strip() for l in info.splitlines() if l.startswith(key)), "?")


def machine():
    """What a reader needs to judge the numbers, as (what, value) lines."""
    isa = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in processor("flags").split()]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    compiler = subprocess.run(["c++", "-dumpfullversion"], capture_output=True, text=True).stdout.strip()
    lines = [("processor", f"{processor('model name')} ({', '.join(isa)})"), ("cores", len(os.sched_getaffinity(0))),
             ("memory", f"{memory:.0f} GiB"), ("system", f"Linux {platform.release().split('-')[0]}, GCC {compiler}")]
    try:
        from importlib.metadata import version
        peers = ", ".join(f"{p} {version(p)}" for p in ("torch", "transformers", "tokenizers"))
        lines.append(("peers", peers))
    except ImportError:
        pass
    return lines


def number(x):
    return f"{x:.0f}" if abs(x) >= 1000 else f"{x:.3g}"


def table(rows):
    """The rows as a Markdown table, aligned so that it also reads well on a terminal."""
    head = ["name", "ours", "peer", "unit", "ratio", "pairs"]
    lines = [head] + [[r["name"], number(r["ours"]), number(r["peer"]), r["unit"], f"{r['ratio']:.2f}x",
                       str(r["pairs"])] for r in rows]
    width = [max(len(line[i]) for line in lines) for i in range(len(head))]
    show = lambda line: "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, width)) + " |"
    rule = "|" + "|".join("-" * (w + 2) for w in width) + "|"
    return "\n".join([show(lines[0]), rule, *map(show, lines[1:])])
