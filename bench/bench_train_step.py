"""Training steps of Hugging Face's models against PyTorch eager on the same number of threads: GPT-2 124M, alone and over two
data parallel processes of one thread (against DDP, ZeroRedundancyOptimizer and FSDP2 on Gloo), and the families."""

import json
import os
import sys

from harness import ROOT, Steps, benchmark, processor, program, row, train_step

RANKS = 2
# glibc gives freed tensors back to the system at once, unless it is told to keep them.
TUNED = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "17179869184",
         "MALLOC_TOP_PAD_": "1073741824"}
GPT2 = {"family": "gpt2", "vocab_size": 50257, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
# Models by their Hugging Face keys, what is trained, samples, and tokens or points of a side.
FAMILIES = {
    "BERT-base, masked LM, 4 x 128": ({"family": "bert", "vocab_size": 30522}, "masked_lm", 4, 128),
    "T5-small, 4 x 128 and 128": ({"family": "t5", "num_layers": 6, "num_heads": 8, "vocab_size": 32128, "decoder_start_token_id": 0}, "seq2seq", 4, 128),
    "ViT-S/16, 8 x 224 x 224": ({"family": "vit", "hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536,
                                 "num_labels": 1000}, "images", 8, 224),
    "Llama-style, 8 x 512 features, 4 x 256": ({"family": "llama", "hidden_size": 512, "num_hidden_layers": 8,
                                                "num_attention_heads": 8, "num_key_value_heads": 2,
                                                "intermediate_size": 1408, "vocab_size": 32000}, "causal_lm", 4, 256),
}


def inputs_of(model, task, rows, size):
    """What train_step.cc draws for a batch."""
    if task == "images":
        return {"pixel_values": {"shape": [rows, 3, size, size]}, "labels": {"shape": [rows], "below": model["num_labels"]}}
    ids = {"shape": [rows, size], "below": model["vocab_size"]}
    labels = ids | ({"counted": 0.15} if task == "masked_lm" else {})
    return {"input_ids": ids, "labels": labels} | ({"decoder_input_ids": ids} if task == "seq2seq" else {})


def both(model, task, rows, size, environment=None, ranks=1, zero_stage=0, parallel=None, **job):
    """Ours and the peer's steps."""
    job = {"threads": 1 if ranks > 1 else len(os.sched_getaffinity(0)), "dtype": "fp32", "model": model} | job
    ours = train_step(job | {"inputs": inputs_of(model, task, rows, size), "zero_stage": zero_stage}, ranks)
    peer = job | {"task": task, "rows": rows, "size": size, "parallel": parallel, "ranks": ranks}
    return ours, Steps([sys.executable, str(ROOT / "bench/train_step_peer.py"), json.dumps(peer)], environment)


def measure(name, *batch, peers=((", PyTorch as shipped", {}),), **job):
    """A row for each environment of the peer, and with the first one the peaks of memory."""
    for label, environment in peers:
        ours, theirs = both(*batch, environment=environment, **job)
        yield row(f"{name}{label}", "s", ours=ours, peer=theirs)
        peaks = float(ours.end()) / 2**20, float(theirs.end()) / 2**20
        if not environment:
            yield {"name": f"{name}, peak resident memory", "ours": peaks[0], "peer": peaks[1], "ratio": peaks[1] / peaks[0],
                   "unit": "MiB", "pairs": 1}


@benchmark("train_step")
def one_process():
    peers = ((", PyTorch as shipped", {}), (", PyTorch allocator tuned", TUNED))
    dropout = {name: 0.1 for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop")}
    yield from measure("train step", GPT2, "causal_lm", 4, 64, peers=peers)
    yield from measure("train step with dropout", GPT2 | dropout, "causal_lm", 4, 64, peers=peers)
    yield from measure("train step in bf16", GPT2, "causal_lm", 4, 64, peers=peers, dtype="bf16")


@benchmark("families")
def families():
    for name, batch in FAMILIES.items():
        yield from measure(f"train step of {name}", *batch)


@benchmark("data_parallel_step")
def data_parallel():
    for name, zero_stage, parallel in (("DDP", 0, "ddp"), ("ZeroRedundancyOptimizer", 1, "zero1"), ("FSDP2", 3, "fsdp")):
        yield from measure(f"data parallel step, ZeRO {zero_stage}, against {name}", GPT2, "causal_lm", 2, 64, peers=(("", {}),),
                           ranks=RANKS, zero_stage=zero_stage, parallel=parallel)


@benchmark("step_bound")
def step_bound():
    """The peers are bounds: 80 % of the memory's rate; 1.05 times what a step cannot do without."""
    threads = len(os.sched_getaffinity(0))
    bound = Steps([program("step_bound"), str(threads), "4", "64"])
    yield row("AdamW step, against its bytes at 80 % of the memory's rate", "s", ours=lambda: bound("optimizer"),
              peer=lambda: bound("memory") / 0.8)
    # What bf16 moves more of a parameter's 28 bytes: its copy of 2.
    for dtype, products, bytes_moved in (("fp32", "products", 28), ("bf16", "products bf16", 30)):
        if dtype == "bf16" and "avx512_bf16" not in processor("flags").split():
            continue  # without such instructions the products take minutes
        step = train_step({"threads": threads, "model": GPT2, "dtype": dtype, "inputs": inputs_of(GPT2, "causal_lm", 4, 64)})
        yield row(f"train step in {dtype}, against 1.05 x (its matrix products + AdamW's bytes)", "s", ours=step,
                  peer=lambda: 1.05 * (min(bound(products) for _ in range(3)) + bound("memory") * bytes_moved / 28))
        step.end()
    bound.end()
