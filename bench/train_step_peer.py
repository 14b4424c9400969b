"""Training steps of a Hugging Face model in PyTorch eager with fused AdamW: the protocol of train_step.cc.

    train_step_peer.py THREADS MODEL TASK BATCH SEQ
"""

import json
import sys
import time

import torch
import transformers

CLASSES = {"causal_lm": "AutoModelForCausalLM", "masked_lm": "AutoModelForMaskedLM", "seq2seq": "AutoModelForSeq2SeqLM",
           "images": "AutoModelForImageClassification"}


def batch_of(task, vocab, rows, size):
    tokens = lambda: torch.randint(vocab, (rows, size))
    if task == "images":
        return {"pixel_values": torch.randn(rows, 3, size, size), "labels": torch.randint(1000, (rows,))}
    ids = tokens()
    if task == "causal_lm":
        return {"input_ids": ids, "labels": ids}
    labels = tokens()
    if task == "masked_lm":
        labels[torch.rand(rows, size) > 0.15] = -100
    return {"input_ids": ids, "labels": labels}


def main():
    threads, model, task, rows, size = int(sys.argv[1]), json.loads(sys.argv[2]), *sys.argv[3:4], *map(int, sys.argv[4:])
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model.pop("family"), **model)
    model = getattr(transformers, CLASSES[task]).from_config(config)
    model.config.use_cache = False
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    batch = batch_of(task, getattr(config, "vocab_size", 0), rows, size)

    def step():
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()

    for line in sys.stdin:
        best = 1e9
        for _ in range(int(line)):
            begin = time.perf_counter()
            step()
            best = min(best, time.perf_counter() - begin)
        print(f"{best:.6f}", flush=True)
    with open("/proc/self/status") as status:
        print(next(int(l.split()[1]) * 1024 for l in status if l.startswith("VmHWM:")), flush=True)


if __name__ == "__main__":
    main()
