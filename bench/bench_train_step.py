"""Training steps (fp32) against Hugging Face's models in PyTorch eager on the same number of threads: GPT-2 124M with 4 x 64
tokens, and the families."""

import json
import os
import sys

from harness import ROOT, Steps, benchmark, program, row

# glibc gives freed tensors back to the system at once, unless it is told to keep them.
TUNED = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "17179869184",
         "MALLOC_TOP_PAD_": "1073741824"}
SHIPPED = [("as shipped", {})]

# Configurations by their Hugging Face keys, what is trained, samples, and tokens or points of a side.
FAMILIES = {
    "BERT-base, masked LM, 4 x 128": ({"family": "bert"}, "masked_lm", 4, 128),
    "T5-small, 4 x 128 and 128": ({"family": "t5", "num_layers": 6, "num_heads": 8}, "seq2seq", 4, 128),
    "ViT-S/16, 8 x 224 x 224": ({"family": "vit", "hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536,
                                 "num_labels": 1000}, "images", 8, 224),
    "Llama-style, 8 x 512 features, 4 x 256": ({"family": "llama", "hidden_size": 512, "num_hidden_layers": 8,
                                                "num_attention_heads": 8, "num_key_value_heads": 2,
                                                "intermediate_size": 1408, "vocab_size": 32000}, "causal_lm", 4, 256),
}


def measure(label, model, task, batch, size, peers):
    arguments = [str(len(os.sched_getaffinity(0))), json.dumps(model), task, str(batch), str(size)]
    peer = [sys.executable, str(ROOT / "bench/train_step_peer.py"), *arguments]
    for name, environment in peers:
        ours, theirs = Steps([program("train_step"), *arguments]), Steps(peer, environment)
        yield row(f"train step{label}, PyTorch {name}", "s", ours=ours, peer=theirs)
        peaks = float(ours.end()) / 2**20, float(theirs.end()) / 2**20
        if not environment:
            yield {"name": f"train step{label}, peak resident memory", "ours": peaks[0], "peer": peaks[1],
                   "ratio": peaks[1] / peaks[0], "unit": "MiB", "pairs": 1}


@benchmark("train_step")
def train_step():
    for label, dropout in (("", 0.0), (" with dropout", 0.1)):
        model = {"family": "gpt2", "resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
        yield from measure(label, model, "causal_lm", 4, 64, [*SHIPPED, ("allocator tuned", TUNED)])


@benchmark("families")
def families():
    for name, (model, task, batch, size) in FAMILIES.items():
        yield from measure(f" of {name}", model, task, batch, size, SHIPPED)
