#!/usr/bin/env python3
"""Runs the code blocks of README.md and docs/*.md, so that what the pages say is what the program does.

The blocks of a page run in order in one scratch copy of the repository, with the program's folder on PATH. By the word after
the fence: `sh`, `bash`, `console` are run (a `console` line is run when it starts with `$ `); `yaml` and `json`
are parsed; `python` is run; anything else (pictures, C++, plain text) is left alone. An info string
`norun: reason` after the word has the block parsed only; `full` has it run in the full suite only; a block with
`file: PATH` is that file's text.

    docs_test.py --bin build/release/bin [--full] [PAGE...]
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^(```+)\s*([\w+-]*)\s*(.*?)\s*$")
SHELL = ("sh", "bash", "console", "shell")


def blocks(page):
    """(line number, word, info, text) of each fenced block."""
    fence = None
    for number, line in enumerate(page.read_text().splitlines(), 1):
        found = FENCE.match(line)
        if fence is None and found:
            fence, start, word, info, text = found[1], number, found[2], found[3], []
        elif fence is not None and line.strip() == fence:
            yield start, word, info, "\n".join(text) + "\n"
            fence = None
        elif fence is not None:
            text.append(line)
    if fence is not None:
        raise SystemExit(f"{page}:{start}: the block is not closed")


def commands(word, text):
    """The shell text of a block: of a console block what follows its prompts."""
    if word != "console":
        return text
    lines, goes_on = [], False
    for line in text.splitlines():
        if line.startswith("$ ") or goes_on:
            lines.append(line[2:] if line.startswith("$ ") else line)
            goes_on = line.endswith("\\")
    return "\n".join(lines) + "\n"


def check(word, info, text, folder, env, full):
    """Runs or parses one block; returns what was done. Raises with a message when it fails."""
    if info.startswith("file: "):
        path = ROOT / info.removeprefix("file: ")
        if path.read_text() != text:
            raise RuntimeError(f"the block is not the text of {path.relative_to(ROOT)}")
        return "compared"
    if word in ("json", "yaml", "yml"):
        if word == "json":
            json.loads(text)
        else:
            import yaml
            list(yaml.safe_load_all(text))
        return "parsed"
    if word not in (*SHELL, "python"):
        return None
    run = ["python3", "-"] if word == "python" else ["bash", "-euo", "pipefail"]
    text = commands(word, text)
    if info.startswith("norun") or info.startswith("full") and not full:
        if info.startswith("norun") and not re.fullmatch(r"norun: \S.*", info):
            raise RuntimeError("a block that is not run says why: `norun: reason`")
        if word == "python":
            compile(text, "block", "exec")
        else:
            subprocess.run(["bash", "-n"], input=text, text=True, check=True, capture_output=True)
        return "parsed"
    ran = subprocess.run(run, input=text, text=True, cwd=folder, env=env, capture_output=True,
                         timeout=1800 if full else 600)
    if ran.returncode:
        raise RuntimeError(f"exit {ran.returncode}\n{text}{ran.stdout[-2000:]}{ran.stderr[-4000:]}")
    return "ran"


def scratch_copy(folder):
    """A copy of the tracked and new files; the Python environment stays where it is."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                            capture_output=True, check=True).stdout.decode().split("\0")
    for name in filter(None, listed):
        source, target = ROOT / name, folder / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    if (ROOT / ".venv").exists():
        (folder / ".venv").symlink_to(ROOT / ".venv")


def missing_paths(page):
    """The files and folders that the tables of docs/features.md name and that are not there."""
    named = re.findall(r"`((?:trireme|tools|tests|bench|cmake|docs)/[^` ]*)`", page.read_text())
    return sorted({path for path in named if not (ROOT / path).exists()})


def main():
    parser = argparse.ArgumentParser(description="Runs the code blocks of the documentation.")
    parser.add_argument("--bin", default=ROOT / "build/release/bin", type=pathlib.Path)
    parser.add_argument("--full", action="store_true", help="run the blocks marked `full` too")
    parser.add_argument("pages", nargs="*", type=pathlib.Path)
    args = parser.parse_args()
    env = {**os.environ, "NO_COLOR": "1",
           "PATH": os.pathsep.join([str(args.bin.resolve()), str(ROOT / ".venv/bin"), os.environ["PATH"]])}
    pages = [page.resolve() for page in args.pages] or [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    failed = passed = 0
    for page in filter(pathlib.Path.exists, pages):
        with tempfile.TemporaryDirectory(prefix="trireme-docs-") as folder:
            folder = pathlib.Path(folder)
            scratch_copy(folder)
            for line, word, info, text in blocks(page):
                try:
                    done = check(word, info, text, folder, env, args.full)
                except Exception as error:
                    failed += 1
                    print(f"{page}:{line}: {error}", file=sys.stderr)
                else:
                    passed += done is not None
                    if done:
                        print(f"{page}:{line}: {word} {done}", flush=True)
    features = ROOT / "docs/features.md"
    if features in pages:
        for path in missing_paths(features):
            failed += 1
            print(f"{features}: names {path}, which is not there", file=sys.stderr)
    print(f"{passed} blocks passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
