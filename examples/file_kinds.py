#!/usr/bin/env python3
"""Makes a text classification set of real files: what kind of file is an excerpt from? docs/finetune.md trains on it.

    python3 examples/file_kinds.py --out out/kinds

writes train.tsv and test.tsv with the columns `text` and `kind`, from files that this machine has: those of the installed
packages of Python, of the C and C++ headers and of /usr/share. No file gives excerpts to both.
"""
import argparse
import importlib.util
import pathlib
import random
import sys
import sysconfig

KINDS = {"python": {".py"}, "c++": {".h", ".hpp", ".cuh", ".cpp"}, "cmake": {".cmake"}, "perl": {".pm", ".pl"},
         "prose": {".md", ".rst", ".txt"}}


def roots():
    places = [sysconfig.get_paths()[name] for name in ("stdlib", "purelib")]
    torch = importlib.util.find_spec("torch")
    places += [str(pathlib.Path(torch.origin).parent)] if torch else []
    return sorted({pathlib.Path(p).resolve() for p in [*places, "/usr/share", "/usr/include"] if pathlib.Path(p).is_dir()})


def excerpts(path, count, length, rng):
    """Parts of the file, without its line breaks and tabs."""
    text = " ".join(path.read_text(encoding="utf-8").split())
    if len(text) < length:
        return []
    return [text[at : at + length] for at in (rng.randrange(len(text) - length + 1) for _ in range(count))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--files", type=int, default=160, help="of each kind")
    parser.add_argument("--excerpts", type=int, default=3, help="of each file")
    parser.add_argument("--length", type=int, default=240, help="characters of an excerpt")
    parser.add_argument("--test", type=float, default=0.25, help="share of the files")
    options = parser.parse_args()
    rng = random.Random(1)
    found = {kind: set() for kind in KINDS}
    for root in roots():
        for path in root.rglob("*"):
            for kind, ends in KINDS.items():
                if path.suffix in ends and path.is_file():
                    found[kind].add(path.resolve())
    rows = {"train": [], "test": []}
    for kind, paths in found.items():
        chosen = sorted(paths)
        rng.shuffle(chosen)
        used = 0
        for path in chosen:
            if used == options.files:
                break
            part = "test" if used < options.files * options.test else "train"
            try:
                texts = excerpts(path, options.excerpts, options.length, rng)
            except (OSError, UnicodeDecodeError):
                continue
            used += bool(texts)
            rows[part] += [f"{text}\t{kind}\n" for text in texts]
        if used < options.files:
            sys.exit(f"{used} files of kind {kind} were found, {options.files} are wanted: lower --files")
    options.out.mkdir(parents=True, exist_ok=True)
    for part, lines in rows.items():
        rng.shuffle(lines)
        (options.out / f"{part}.tsv").write_text("text\tkind\n" + "".join(lines), encoding="utf-8")
        print(f"{options.out / part}.tsv: {len(lines)} excerpts of {len(KINDS)} kinds")


if __name__ == "__main__":
    main()
