"""Orders of samples that others fixed, against NumPy, PyTorch and the published algorithms in Python."""

import json
import math
import os
import pathlib
import subprocess

import numpy
import pytest
import torch

DRIVER = os.environ.get("TRIREME_DATA_DRIVER", "build/core/bin/data_driver")


def ask(*questions):
    text = "".join(json.dumps(q) + "\n" for q in questions)
    done = subprocess.run([DRIVER], input=text, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_numpy_legacy_random():
    p = [0.05, 0.2, 0.3, 0.45]
    calls = [["random"], ["randint", 0, 1], ["randint", 3, 10], ["permutation", 17], ["choice", p],
             ["randint", 0, 2**32], ["randint", 0, 2**32 + 5], ["permutation", 1], ["random"]] * 4
    for seed in (0, 1, 42, 1234, 2**32 - 1):
        state = numpy.random.RandomState(seed)
        expected = [
            state.random_sample() if c[0] == "random" else
            int(state.randint(c[1], c[2], dtype=numpy.int64)) if c[0] == "randint" else
            state.permutation(c[1]).tolist() if c[0] == "permutation" else int(state.choice(len(p), p=p))
            for c in calls]
        assert ask({"op": "numpy", "seed": seed, "calls": calls})[0] == expected


def test_numpy_legacy_geometric():
    for p in (1e-9, 0.01, 0.2, 0.333, 1 / 3, 0.34, 0.5, 0.9, 1.0):
        state = numpy.random.RandomState(7)
        expected = [int(state.geometric(p)) for _ in range(500)]
        assert ask({"op": "numpy", "seed": 7, "calls": [["geometric", p]] * 500})[0] == expected, p


def build_mapping(documents, max_tokens, short_seq_prob, min_sentences, seed):
    """Spans of sentences as Megatron-LM's build_mapping cuts them, before its shuffle (reference, section 2.7)."""
    words = numpy.random.RandomState(seed)._bit_generator.random_raw  # std::mt19937's
    every = math.floor(1 / short_seq_prob + 0.5) if short_seq_prob > 0 else 0

    def target():
        if every == 0:
            return max_tokens
        word = int(words())
        return 2 + word % (max_tokens - 1) if word % every == 0 else max_tokens

    spans, first = [], 0
    for lengths in documents:
        left = len(lengths)
        long_one = left > 1 and max(lengths) > 512
        if left >= max(min_sentences, 1) and not long_one:
            begin, tokens, sentences, wanted = first, 0, 0, target()
            for number, length in enumerate(lengths, first):
                tokens, sentences, left = tokens + length, sentences + 1, left - 1
                if (tokens >= wanted and left > 1 and sentences >= min_sentences) or left == 0:
                    spans.append([begin, number + 1, wanted])
                    begin, tokens, sentences, wanted = number + 1, 0, 0, target()
        first += len(lengths)
    return spans


def test_sentence_spans(tmp_path):
    random = numpy.random.RandomState(11)
    found = short = 0
    for case in range(40):
        documents = [random.randint(1, 60 if case % 4 else 530, size=random.randint(0, 25)).tolist()
                     for _ in range(random.randint(1, 40))]
        options = dict(max_tokens=int(random.choice([8, 61, 125, 509])), short_seq_prob=float(random.choice([0, 0.1, 0.3, 0.5, 1])),
                       min_sentences=int(random.choice([1, 2])), seed=int(random.randint(2**31)))
        expected = build_mapping(documents, **options)
        answer = ask(dict(op="spans", prefix=str(tmp_path / "d"), documents=documents, **options))[0]
        assert answer == expected, options
        found += len(expected)
        short += sum(target != options["max_tokens"] for _, _, target in expected)
    assert found > 1000 and short > 100


def test_torch_randperm():
    cases = [(n, seed) for n in (0, 1, 2, 7, 1000, 123457) for seed in (0, 1, 1234, 2**40 + 5)]
    answers = ask(*({"op": "randperm", "size": n, "seed": seed} for n, seed in cases))
    for (n, seed), answer in zip(cases, answers):
        assert answer == torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist(), (n, seed)


def gpt_dataset_order(lengths, documents, samples, seq_length, seed):
    """Megatron-LM's GPTDataset as its paper trail describes it (reference, section 2.4)."""
    random = numpy.random.RandomState(seed)
    per_epoch = int(lengths[documents].sum())
    epochs = 1
    if samples:
        while epochs * per_epoch < samples * seq_length + 1:
            epochs += 1
    before_last = ((epochs - 1) * per_epoch - 1) // seq_length
    separate = epochs > 1 and samples - before_last < int(0.8 * ((per_epoch - 1) // seq_length))
    parts = [epochs - 1, 1] if separate else [epochs]
    order = []
    for part in parts:
        repeated = numpy.tile(documents, part).astype(numpy.int32)
        random.shuffle(repeated)
        order.append(repeated)
    order = numpy.concatenate(order)
    count = (epochs * per_epoch - 1) // seq_length
    starts = numpy.concatenate([[0], numpy.cumsum(lengths[order], dtype=numpy.int64)])
    places = []
    for at in range(0, (count + 1) * seq_length, seq_length):
        # A sample's last token is the next one's first: the place of token `at`, where the document that
        # ends exactly there still counts as its holder.
        document = max(int(numpy.searchsorted(starts, at, side="right")) - 1, 0)
        places.append([document, int(at - starts[document])])
    bounds = [0, before_last, count] if separate else [0, count]
    shuffled = []
    for begin, end in zip(bounds, bounds[1:]):
        part = numpy.arange(begin, end, dtype=numpy.uint32)
        random.shuffle(part)
        shuffled.append(part)
    return {"documents": order.tolist(), "places": places, "order": numpy.concatenate(shuffled).tolist()}


def test_megatron_order():
    random = numpy.random.RandomState(5)
    separated = 0
    for case in range(60):
        lengths = random.randint(1, 30, size=random.randint(3, 40)).astype(numpy.int32)
        documents = numpy.arange(len(lengths))[random.randint(0, 2):]
        seq_length = int(random.randint(1, 40))
        if lengths[documents].sum() <= seq_length:
            continue
        samples = int(random.choice([0, 1, 17, 200]))
        question = dict(op="megatron", lengths=lengths.tolist(), documents=documents.tolist(),
                        seq_length=seq_length, samples=samples, seed=case)
        answer = ask(question)[0]
        expected = gpt_dataset_order(lengths, documents, samples, seq_length, case)
        assert answer == expected, question
        epochs = len(expected["documents"]) // len(documents)
        separated += epochs > 1 and sorted(expected["order"][:5]) != sorted(expected["order"])
    assert separated > 10


def test_megatron_order_of_the_oslo_golden():
    answer = ask(dict(op="megatron", lengths=[3, 5, 2, 7, 4, 6, 1, 8, 3, 5], documents=list(range(10)),
                      seq_length=7, samples=0, seed=42))[0]
    assert answer["documents"] == [8, 1, 5, 0, 7, 2, 9, 4, 3, 6]
    assert answer["places"] == [[0, 0], [1, 4], [3, 0], [4, 4], [6, 1], [7, 3], [8, 6]]
    assert answer["order"] == [3, 1, 0, 4, 5, 2]


def blend(weights, size):
    weights = numpy.array(weights, dtype=numpy.float64)
    weights = weights / numpy.sum(weights)
    used = numpy.zeros(len(weights), dtype=numpy.int64)
    places = []
    for k in range(size):
        due = int(numpy.argmax(weights * max(k, 1.0) - used))
        places.append([due, int(used[due])])
        used[due] += 1
    return places


def test_megatron_blend():
    random = numpy.random.RandomState(3)
    for count in (1, 2, 3, 7, 8, 9, 40, 300):
        weights = random.random_sample(count).tolist()
        assert ask({"op": "blend", "weights": weights, "size": 500})[0] == blend(weights, 500)
    golden = ask({"op": "blend", "weights": [0.7, 0.3], "size": 10})[0]
    assert [d for d, _ in golden] == [0, 1, 0, 0, 1, 0, 0, 1, 0, 0]
    assert [s for _, s in golden] == [0, 0, 1, 2, 1, 3, 4, 2, 5, 6]


def test_megatron_exhaustive_blend():
    random = numpy.random.RandomState(3)
    for count in (1, 2, 5, 9):
        sizes = random.randint(1, 40, size=count)
        weights, used, places = sizes / sizes.sum(), numpy.zeros(count, dtype=numpy.int64), []
        for k in range(sizes.sum()):
            lack = numpy.where(used < sizes, weights * max(k, 1.0) - used, -numpy.inf)
            due = int(numpy.argmax(lack))
            places.append([due, int(used[due])])
            used[due] += 1
        assert ask({"op": "exhaustive", "sizes": sizes.tolist()})[0] == places


@pytest.mark.parametrize("split", ["949,50,1", "95,5", "1,1,1", "100", "0.3,0.7", "8,1,1"])
def test_split_rounds_half_to_even(split):
    shares = [float(s) for s in split.split(",")]
    total = sum(shares)
    for count in (1, 5, 10, 15, 25, 999, 1000, 12345):
        bounds, before = [0], 0.0
        for share in shares:
            before += share / total
            bounds.append(int(round(before * float(count))))
        assert ask({"op": "split", "split": split, "count": count})[0] == bounds


def test_proxy_sampler():
    """torch.utils.data.DistributedSampler over the positions of another sampler."""
    random = numpy.random.RandomState(8)
    for _ in range(60):
        count, replicas = int(random.randint(1, 40)), int(random.randint(1, 6))
        indices = random.permutation(1000)[:count].tolist()
        options = dict(shuffle=bool(random.randint(2)), seed=int(random.randint(10)), drop_last=bool(random.randint(2)))
        if options["drop_last"] and count < replicas:
            continue
        epoch = int(random.randint(4))
        for rank in range(replicas):
            sampler = torch.utils.data.DistributedSampler(range(count), replicas, rank, **options)
            sampler.set_epoch(epoch)
            expected = [indices[i] for i in sampler]
            assert ask(dict(op="proxy", indices=indices, replicas=replicas, rank=rank, epoch=epoch, **options))[0] == expected
