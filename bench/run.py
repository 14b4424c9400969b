#!/usr/bin/env python3
"""Runs the benchmarks of this folder (`trireme bench`, `make bench`): all, or those whose names are given.

The table goes to stdout; `--json` prints the rows as one JSON document; `--markdown FILE` also writes the
page that docs/benchmarks.md is.
"""

import argparse
import importlib
import json
import pathlib
import sys

import harness

PAGE = """# Benchmarks

Written by `trireme bench --markdown docs/benchmarks.md`; `make bench` prints the table. Ours and the peer run in
turns on the same machine with the same number of threads; the ratio is the median over the pairs of how many
times better ours is (above 1: ours is faster, or smaller). Times and rates are medians.

{machine}

{table}
"""


def main():
    here = pathlib.Path(__file__).resolve().parent
    for file in sorted(here.glob("bench_*.py")):
        importlib.import_module(file.stem)
    parser = argparse.ArgumentParser(prog="trireme bench", description="Measures trireme against its peers.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run: " + " ".join(harness.BENCHMARKS))
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--pairs", type=int, default=harness.PAIRS, help="turns of each row (default: %(default)s)")
    parser.add_argument("--markdown", metavar="FILE", help="also write the page with the machine's description")
    args = parser.parse_args()
    unknown = [name for name in args.names if name not in harness.BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; there are: {' '.join(harness.BENCHMARKS) or 'none'}")
    if args.pairs < 1:
        parser.error(f"--pairs is {args.pairs}; it is at least 1")
    harness.PAIRS = args.pairs

    rows = []
    for name in args.names or harness.BENCHMARKS:
        rows += harness.BENCHMARKS[name]()
    machine = "\n".join(f"- {what}: {value}" for what, value in harness.machine())
    if args.json:
        print(json.dumps(rows))
    else:
        print(f"{machine}\n\n{harness.table(rows)}")
    if args.markdown:
        pathlib.Path(args.markdown).write_text(PAGE.format(machine=machine, table=harness.table(rows)))


if __name__ == "__main__":
    sys.exit(main())
