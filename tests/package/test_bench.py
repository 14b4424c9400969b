"""The benchmarks' harness: turns, ratios, the table, and the program's refusals."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import harness  # noqa: E402


def turns(values, log, name):
    values = iter(values)

    def turn():
        log.append(name)
        return next(values)
    return turn


def test_alternates_and_takes_medians():
    log = []
    measured = harness.alternate(turns([9, 1, 2, 4], log, "ours"), turns([9, 2, 2, 20], log, "peer"), pairs=3)
    assert log == ["ours", "peer"] * 4
    assert measured == {"ours": 2, "peer": 2, "ratio": 2, "pairs": 3}


def test_more_is_better_turns_the_ratio():
    log = []
    measured = harness.alternate(turns([30, 30], log, "ours"), turns([10, 10], log, "peer"), pairs=2, better="more",
                                 warm_up=False)
    assert measured["ratio"] == 3
    with pytest.raises(ValueError):
        harness.alternate(None, None, better="larger")


def test_table():
    row = {"name": "x", "ours": 0.12345, "peer": 1234.5, "ratio": 2, "unit": "s", "pairs": 5}
    assert harness.table([row]).splitlines()[2] == "| x    | 0.123 | 1234 | s    | 2.00x | 5     |"


def test_program_refuses_unknown_names():
    program = os.environ.get("TRIREME_PROGRAM", ROOT / "build/release/bin/trireme")
    done = subprocess.run([program, "bench", "nothing_like_it"], capture_output=True, text=True)
    assert done.returncode == 2 and "nothing_like_it" in done.stderr
