"""GPT-2 124M with AdamW's state through torch.save and torch.load: the protocol of checkpoint.cc.

    checkpoint_peer.py THREADS FOLDER

copy: a copy of the state into memory that is there already, by as many threads.
"""

import os
import sys
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def main():
    torch.set_num_threads(int(sys.argv[1]))
    path = os.path.join(sys.argv[2], "checkpoint.pt")
    parameters = dict(GPT2LMHeadModel(GPT2Config()).named_parameters())
    state = {name: p.detach() for name, p in parameters.items()}
    for kind in ("exp_avg", "exp_avg_sq"):
        state |= {f"{name}.{kind}": torch.rand_like(p) for name, p in parameters.items()}
    memory = {name: torch.zeros_like(t) for name, t in state.items()}

    def save():
        torch.save(state, path)
        with open(path, "rb+") as file:
            os.fsync(file.fileno())

    def load():
        return torch.load(path, weights_only=True)

    def copy():
        for name, tensor in state.items():
            memory[name].copy_(tensor)

    actions = {"save": save, "load": load, "copy": copy}
    for line in sys.stdin:
        if line.strip() == "bytes":
            print(sum(t.nbytes for t in state.values()), flush=True)
            continue
        begin = time.perf_counter()
        kept = actions[line.strip()]()
        seconds = time.perf_counter() - begin
        del kept
        print(f"{seconds:.6f}", flush=True)


if __name__ == "__main__":
    main()
