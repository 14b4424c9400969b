"""What the trainers' options do, and that their memory is bounded: many more different words than they keep count of."""

import json
import os
import pathlib
import subprocess
import sys

import numpy
import pytest
from tokenizers import Tokenizer
from text_support import DRIVER, drive, package

SOURCES = [str(p) for p in sorted((package("torch") / "nn" / "modules").glob("*.py"))]
PEAK_MEMORY = pathlib.Path(__file__).resolve().parents[1] / "peak_memory.py"
FULL = os.environ.get("TRIREME_FULL") == "1"


def train(out, files, **options):
    done = subprocess.run([DRIVER, "train_with", out, json.dumps(options), *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads((out / "tokenizer.json").read_text()), done.stdout


def tokens(file):
    vocabulary = file["model"]["vocab"]
    return [v[0] for v in vocabulary] if isinstance(vocabulary, list) else sorted(vocabulary, key=vocabulary.get)


def single(file):
    return {t for t in tokens(file) if len(t) == 1}


def corpus(tmp_path, text):
    path = tmp_path / "corpus.txt"
    path.write_text(text)
    return [str(path)]


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_initial_alphabet(tmp_path, kind):
    files = corpus(tmp_path, "the cat and the dog and the bird\n" * 50)
    without, _ = train(tmp_path / "a", files, type=kind, vocab_size=80, lowercase=False)
    given, _ = train(tmp_path / "b", files, type=kind, vocab_size=80, lowercase=False, initial_alphabet=["é", "中", "t"])
    assert single(given) == single(without) | {"é", "中"}
    assert drive("ids", tmp_path / "b", ["é"]) != drive("ids", tmp_path / "a", ["é"])
    tokenizer = Tokenizer.from_file(str(tmp_path / "b/tokenizer.json"))
    assert "[UNK]" not in tokenizer.encode("é").tokens and tokenizer.token_to_id("<unk>") not in tokenizer.encode("é").ids
    done = subprocess.run([DRIVER, "train_with", tmp_path / "c", json.dumps(
        {"type": kind, "vocab_size": 80, "initial_alphabet": ["ab"]}), *files], capture_output=True, text=True)
    assert done.returncode == 2 and '"ab" is not one character' in done.stderr


def test_limit_alphabet_keeps_the_most_frequent(tmp_path):
    files = corpus(tmp_path, "".join(c * n + " " for n, c in enumerate("zyxwvutsrq", 1)) + "\n")
    for limit in (1, 4, 10):
        file, _ = train(tmp_path / str(limit), files, type="wordpiece", vocab_size=60, limit_alphabet=limit)
        assert single(file) == set("qrstuvwxyz"[:limit])
    # What is given first stays, whatever its frequency.
    file, _ = train(tmp_path / "given", files, type="wordpiece", vocab_size=60, limit_alphabet=3, initial_alphabet=["z", "é"])
    assert single(file) == {"z", "é", "q"}


def test_min_frequency_of_wordpiece(tmp_path):
    files = corpus(tmp_path, "common common common common rare\n" * 2 + "common seldom\n")
    words = {}
    for least in (0, 3, 9):
        file, _ = train(tmp_path / str(least), files, type="wordpiece", vocab_size=200, min_frequency=least)
        words[least] = {t for t in tokens(file) if t in ("common", "rare", "seldom")}
    assert words == {0: {"common", "rare", "seldom"}, 3: {"common"}, 9: {"common"}}
    file, _ = train(tmp_path / "none", files, type="wordpiece", vocab_size=200, min_frequency=11)
    assert not any(len(t.removeprefix("##")) > 1 for t in tokens(file) if not t.startswith("["))


def test_character_coverage(tmp_path):
    files = corpus(tmp_path, "aaaa bbb cc\n" * 300 + "aé\n")
    for coverage, kept in ((1.0, set("▁abcé")), (0.9995, set("▁abc")), (0.58, set("▁a"))):
        file, _ = train(tmp_path / str(coverage), files, type="unigram", vocab_size=40, character_coverage=coverage)
        assert single(file) == kept, coverage
        unknown = file["model"]["unk_id"]
        assert (unknown in drive("ids", tmp_path / str(coverage), ["é"])[0]) == ("é" not in kept)


def test_max_piece_length(tmp_path):
    longest = {}
    for length in (1, 3, 16):
        file, _ = train(tmp_path / str(length), SOURCES[:6], type="unigram", vocab_size=400, max_piece_length=length)
        longest[length] = max(len(t) for t in tokens(file) if t not in ("<unk>", "<s>", "</s>"))
    assert longest[1] == 1 and longest[3] == 3 and 3 < longest[16] <= 16


@pytest.mark.parametrize("kind, special, end", [
    ("bpe", ["<end>", "<pad>", "<mask>"], "<end>"), ("wordpiece", ["[UNK]", "[CLS]", "[SEP]", "[X]"], None),
    ("wordpiece", ["[UNK]"], None), ("unigram", ["<?>", "<pad>", "<end>"], "<end>")])
def test_custom_special_tokens(tmp_path, kind, special, end):
    from transformers import AutoTokenizer
    file, _ = train(tmp_path / "t", SOURCES[:4], type=kind, vocab_size=400, special_tokens=special)
    assert tokens(file)[:len(special)] == special
    assert [(t["content"], t["id"], t["special"]) for t in file["added_tokens"]] == [(t, i, True) for i, t in enumerate(special)]
    auto = AutoTokenizer.from_pretrained(tmp_path / "t")
    assert auto.eos_token == end
    assert auto.pad_token == ("<pad>" if "<pad>" in special else None)
    if kind == "unigram":
        assert file["model"]["unk_id"] == 0 and auto.unk_token == "<?>"
    for text in ("a" + special[-1] + "b", special[0]):
        ids = drive("ids", tmp_path / "t", [text])[0]
        assert special.index(special[-1] if text[0] == "a" else special[0]) in ids
        assert auto(text, add_special_tokens=False)["input_ids"] == ids


KINDS = {"bpe": 2000, "wordpiece": 2000, "unigram": 1000}


@pytest.mark.parametrize("kind", KINDS)
def test_words_beyond_the_limit_are_forgotten_and_told(tmp_path, kind):
    plain, said = train(tmp_path / "plain", SOURCES, type=kind, vocab_size=KINDS[kind])
    assert said == ""
    some = [train(tmp_path / str(n), SOURCES, type=kind, vocab_size=KINDS[kind], max_words=3000, threads=n) for n in (1, 2, 5)]
    assert some[0] == some[1] == some[2], "the same for any number of threads"
    assert "rare words" in some[0][1] and "more than 3000" in some[0][1]
    common = set(tokens(plain)) & set(tokens(some[0][0]))
    assert len(common) > 0.5 * KINDS[kind], "what is frequent is learned all the same"
    assert train(tmp_path / "large", SOURCES, type=kind, vocab_size=KINDS[kind], max_words=1_000_000)[0] == plain


def words_without_end(path, megabytes):
    """Words of nine letters, hardly any twice; every tenth line is one that repeats."""
    rng = numpy.random.default_rng(1)
    with open(path, "wb") as out:
        for _ in range(megabytes):
            letters = rng.integers(97, 123, size=(104_858, 10), dtype=numpy.uint8)
            letters[:, 9] = 32
            letters[::20, 9] = 10
            letters[::200, :9] = numpy.frombuffer(b"the often", dtype=numpy.uint8)
            out.write(letters.tobytes())


def peak_of_training(tmp_path, kind, megabytes):
    """The peak of resident memory, in MiB, of learning from so much with half a million words counted at once."""
    words_without_end(tmp_path / "corpus", megabytes)
    options = dict(type=kind, vocab_size=600, max_words=500_000, threads=2)
    command = [sys.executable, PEAK_MEMORY, DRIVER, "train_with", tmp_path / "t", json.dumps(options), tmp_path / "corpus"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    peak = int(said.split()[-1]) >> 20
    assert "rare words" in said
    print(kind, megabytes, "MB:", peak, "MiB")
    return peak


@pytest.mark.skipif(not FULL, reason="hundreds of megabytes to learn from")
@pytest.mark.parametrize("kind", KINDS)
def test_memory_does_not_grow_with_the_corpus(tmp_path, kind):
    assert peak_of_training(tmp_path, kind, 256) < 1.15 * peak_of_training(tmp_path, kind, 64)


@pytest.mark.parametrize("kind", KINDS if FULL else ["bpe"])
def test_memory_is_bounded(tmp_path, kind):
    """Half a million words are counted at once, of tens of millions that there are; docs/tokenizers.md states the bound."""
    peak = peak_of_training(tmp_path, kind, 300 if FULL else 48)
    assert peak < {"bpe": 800, "wordpiece": 800, "unigram": 1400}[kind], f"{peak} MiB"
    assert any("often" in t for t in tokens(json.loads((tmp_path / "t/tokenizer.json").read_text())))
