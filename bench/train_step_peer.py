"""Training steps of a Hugging Face model in PyTorch eager with fused AdamW: the protocol of train_step.cc.

    train_step_peer.py '{"model": {"family": "gpt2"}, "task": "causal_lm", "rows": 4, "size": 64, "threads": 2,
                         "dtype": "fp32", "parallel": "ddp", "ranks": 2}'

`parallel`: ddp, zero1 or fsdp (GPT-2) over `ranks` processes on Gloo; null: one process.
"""

import contextlib
import json
import multiprocessing
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import transformers

CLASSES = {"causal_lm": "AutoModelForCausalLM", "masked_lm": "AutoModelForMaskedLM", "seq2seq": "AutoModelForSeq2SeqLM",
           "images": "AutoModelForImageClassification"}


def batch_of(config, task, rows, size):
    if task == "images":
        return {"pixel_values": torch.randn(rows, 3, size, size), "labels": torch.randint(config.num_labels, (rows,))}
    ids, labels = torch.randint(config.vocab_size, (2, rows, size))
    if task == "masked_lm":
        labels[torch.rand(rows, size) > 0.15] = -100
    return {"input_ids": ids, "labels": ids if task == "causal_lm" else labels}


def parallelize(model, kind):
    """The model and its optimizer over the processes."""
    adamw = dict(lr=1e-4, weight_decay=0.01, fused=True)
    if kind == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for block in model.transformer.h:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif kind:
        model = torch.nn.parallel.DistributedDataParallel(model)
    if kind == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer
        return model, ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, **adamw)
    return model, torch.optim.AdamW(model.parameters(), **adamw)


def answer(job, step, rank):
    """Runs what rank 0's standard input asks for until it ends."""
    parallel = bool(job["parallel"])
    while True:
        steps = torch.zeros(1, dtype=torch.int64)
        if rank == 0:
            steps[0] = int(sys.stdin.readline() or 0)
        if parallel:
            dist.broadcast(steps, 0)
        if steps.item() == 0:
            return
        best = 1e9
        for _ in range(steps.item()):
            if parallel:
                dist.barrier()
            begin = time.perf_counter()
            step()
            if parallel:
                dist.barrier()
            best = min(best, time.perf_counter() - begin)
        if rank == 0:
            print(f"{best:.6f}", flush=True)


def work(rank, job, store):
    torch.set_num_threads(job["threads"])
    if job["parallel"]:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=job["ranks"])
    torch.manual_seed(0)
    keys = dict(job["model"])
    config = transformers.AutoConfig.for_model(keys.pop("family"), **keys)
    model = getattr(transformers, CLASSES[job["task"]]).from_config(config)
    model.config.use_cache = False
    model.train()
    model, optimizer = parallelize(model, job["parallel"])
    batch = batch_of(config, job["task"], job["rows"], job["size"])
    precision = torch.autocast("cpu", torch.bfloat16) if job["dtype"] == "bf16" else contextlib.nullcontext()

    def step():
        optimizer.zero_grad()
        with precision:
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()

    answer(job, step, rank)
    if rank == 0:
        with open("/proc/self/status") as status:
            print(next(int(l.split()[1]) * 1024 for l in status if l.startswith("VmHWM:")), flush=True)
    if job["parallel"]:
        dist.destroy_process_group()


def main():
    job = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        arguments = job, folder + "/store"
        others = [multiprocessing.get_context("fork").Process(target=work, args=(r, *arguments)) for r in range(1, job["ranks"])]
        for process in others:
            process.start()
        work(0, *arguments)
        for process in others:
            process.join()


if __name__ == "__main__":
    main()
