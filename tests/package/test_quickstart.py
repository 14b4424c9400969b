"""The quickstart's own run: what it draws, and that a second one reuses what is there."""

import math
import os
import pathlib
import re
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ["TRIREME_PROGRAM"]


def test_quickstart(tmp_path):
    for part in ("examples/quickstart", "configs"):
        shutil.copytree(ROOT / part, tmp_path / part)
    if (ROOT / ".venv").exists():
        (tmp_path / ".venv").symlink_to((ROOT / ".venv").resolve())
    command = ["bash", str(tmp_path / "examples/quickstart/run.sh"), PROGRAM]
    first = subprocess.run(command, capture_output=True, text=True, timeout=1500)
    assert first.returncode == 0, first.stdout[-2000:] + first.stderr[-2000:]
    drawn = [float(loss) for loss in re.findall(r"^    step \d+: ([0-9.]+)$", first.stdout, re.MULTILINE)]
    assert abs(drawn[0] - math.log(4096)) < 0.2 and drawn[-1] < 5.0, drawn
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(tmp_path / "out/quickstart/hf")
    again = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert again.returncode == 0, again.stdout[-2000:] + again.stderr[-2000:]
    assert again.stdout.count("is there, reused") == 4
