"""Training steps of Hugging Face's GPT-2 124M in PyTorch eager with fused AdamW: the protocol of train_step.cc.

    train_step_peer.py THREADS BATCH SEQ DROPOUT
"""

import sys
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def main():
    threads, batch, seq = map(int, sys.argv[1:4])
    dropout = float(sys.argv[4])
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, use_cache=False))
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    ids = torch.randint(50257, (batch, seq))

    def step():
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
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
