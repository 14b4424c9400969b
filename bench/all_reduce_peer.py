"""Time of one all-reduce of fp32 with PyTorch's Gloo: all_reduce_peer.py RANKS BYTES TIMES; prints microseconds."""
import multiprocessing
import statistics
import sys
import tempfile
import time


def rank(index, ranks, count, times, file):
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=index, world_size=ranks)
    data = torch.zeros(count)
    seconds = []
    for i in range(-(times // 10) - 1, times):
        start = time.perf_counter()
        dist.all_reduce(data)
        if i >= 0:
            seconds.append(time.perf_counter() - start)
    dist.barrier()
    if index == 0:
        print(statistics.median(seconds) * 1e6, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks, size, times = map(int, sys.argv[1:4])
    with tempfile.TemporaryDirectory() as folder:
        processes = [multiprocessing.Process(target=rank, args=(r, ranks, size // 4, times, f"{folder}/store"))
                     for r in range(ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        sys.exit(any(process.exitcode for process in processes))
