"""A pipelined training step (8 layers, hidden 512, vocabulary 8192, 8 micro-batches of 1 x 256 tokens, 2 processes of
one thread) against torch.distributed.pipelining on Gloo, and what the executor itself takes."""

import subprocess
import sys

from harness import ROOT, Steps, benchmark, program, row, train_step

RANKS, MICRO_BATCHES, SEQ, VOCAB = 2, 8, 256, 8192
MODEL = {"family": "gpt2", "n_layer": 8, "n_embd": 512, "n_head": 8, "n_positions": SEQ, "vocab_size": VOCAB,
         "tie_word_embeddings": False, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
CHUNKS = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zb-h1": 1, "zb-v": 2}
# Blocks of each chunk as `train.dist.balance: cost` shares them, the head counted: what a user of ours asks for in a word.
BY_COST = {"gpipe": [5, 3], "1f1b": [5, 3], "interleaved": [2, 2, 3, 1], "zb-h1": [5, 3], "zb-v": [2, 3, 2, 1]}


@benchmark("pipeline_step")
def pipeline_step():
    """The peer has the blocks shared evenly; ours evenly too, and by cost."""
    for schedule, chunks in CHUNKS.items():
        ids = {"shape": [1, SEQ], "below": VOCAB}
        job = {"model": MODEL, "inputs": {"input_ids": ids, "labels": ids}, "pp": RANKS, "schedule": schedule,
               "chunks": chunks, "micro_batches": MICRO_BATCHES}
        peer = Steps([sys.executable, str(ROOT / "bench/pipeline_step_peer.py"), schedule, *map(str, (chunks, MICRO_BATCHES, SEQ, RANKS))])
        name = f"pipeline step, {schedule}" + (f" with {chunks} chunks" if chunks > 1 else "")
        for shared, more in (("", {}), (", ours shared by cost", {"blocks": BY_COST[schedule]})):
            ours = train_step(job | more, RANKS)
            yield row(name + shared, "s", ours=ours, peer=peer)
            ours.end()
        peer.end()


@benchmark("executor_overhead")
def executor_overhead():
    """The peer is the bound: 20 us an action."""
    measured = min(float(subprocess.check_output([program("executor_overhead")])) for _ in range(5))
    yield {"name": "executor, an action of empty layers", "ours": measured, "peer": 20.0, "ratio": 20 / measured,
           "unit": "us (bound)", "pairs": 5}
