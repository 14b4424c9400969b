"""The model of bench_pipeline.py in torch.distributed.pipelining over Gloo, one thread a rank, with the protocol of train_step.cc.

    pipeline_step_peer.py SCHEDULE CHUNKS MICRO_BATCHES SEQ RANKS
"""

import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed import pipelining
from torch.distributed.pipelining import schedules
from transformers import GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

LAYERS, HIDDEN, VOCAB = 8, 512, 8192
SCHEDULES = {"gpipe": schedules.ScheduleGPipe, "1f1b": schedules.Schedule1F1B,
             "interleaved": schedules.ScheduleInterleaved1F1B, "zb-h1": schedules.ScheduleInterleavedZeroBubble,
             "zb-v": schedules.ScheduleZBVZeroBubble}


class Chunk(torch.nn.Module):
    """Layers [begin, end) of the model, with the embedding before the first and the head after the last."""

    def __init__(self, config, begin, end):
        super().__init__()
        self.first, self.last = begin == 0, end == LAYERS
        if self.first:
            self.tokens = torch.nn.Embedding(VOCAB, HIDDEN)
            self.places = torch.nn.Embedding(config.n_positions, HIDDEN)
        self.blocks = torch.nn.ModuleList(GPT2Block(config, i) for i in range(begin, end))
        if self.last:
            self.norm = torch.nn.LayerNorm(HIDDEN)
            self.head = torch.nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, x):
        if self.first:
            x = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        for block in self.blocks:
            out = block(x)
            x = out[0] if isinstance(out, tuple) else out
        return self.head(self.norm(x)) if self.last else x


def criterion(logits, labels):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def work(rank, name, chunks, micro_batches, seq, ranks, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    config = GPT2Config(n_layer=LAYERS, n_embd=HIDDEN, n_head=8, n_positions=seq, vocab_size=VOCAB, resid_pdrop=0.0,
                        embd_pdrop=0.0, attn_pdrop=0.0)
    config._attn_implementation = "sdpa"
    total = ranks * chunks
    own = [rank, 2 * ranks - 1 - rank] if name == "zb-v" else [rank + c * ranks for c in range(chunks)]
    per = LAYERS // total
    stages = [pipelining.PipelineStage(Chunk(config, c * per, (c + 1) * per), c, total, torch.device("cpu"))
              for c in own]
    multi = issubclass(SCHEDULES[name], schedules.PipelineScheduleMulti)
    schedule = SCHEDULES[name](stages if multi else stages[0], micro_batches, loss_fn=criterion)
    optimizer = torch.optim.AdamW([p for s in stages for p in s.submod.parameters()], lr=1e-4, fused=True)
    ids = (torch.arange(seq + 1) * 7919 + torch.arange(micro_batches)[:, None] * 104729) % VOCAB
    inputs, labels = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    holds_last = total - 1 in own

    def step():
        optimizer.zero_grad()
        schedule.step(*([inputs] if rank == 0 else []), **({"target": labels, "losses": []} if holds_last else {}))
        optimizer.step()

    while True:
        steps = torch.zeros(1, dtype=torch.int64)
        if rank == 0:
            steps[0] = int(sys.stdin.readline() or 0)
        dist.broadcast(steps, 0)
        if steps.item() == 0:
            break
        best = 1e9
        for _ in range(steps.item()):
            dist.barrier()
            begin = time.perf_counter()
            step()
            dist.barrier()
            best = min(best, time.perf_counter() - begin)
        if rank == 0:
            print(f"{best:.6f}", flush=True)
    dist.destroy_process_group()


def main():
    name = sys.argv[1]
    chunks, micro_batches, seq, ranks = map(int, sys.argv[2:6])
    with tempfile.TemporaryDirectory() as folder:
        arguments = (name, chunks, micro_batches, seq, ranks, folder + "/store")
        others = [mp.get_context("fork").Process(target=work, args=(r, *arguments)) for r in range(1, ranks)]
        for process in others:
            process.start()
        work(0, *arguments)
        for process in others:
            process.join()


if __name__ == "__main__":
    main()
