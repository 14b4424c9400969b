"""What kernel_step.cc does, by PyTorch's own operations and the same protocol (without the peak).

    kernel_step_peer.py THREADS head_loss ROWS VOCABULARY FEATURES | attention SEQ DROPOUT
"""

import sys
import time

import torch
import torch.nn.functional as F


def head_loss(rows, vocab, features):
    table = (torch.randn(vocab, features) * 0.02).requires_grad_()
    x = torch.randn(rows, features, requires_grad=True)
    labels = torch.randint(vocab, (rows,))

    def turn():
        table.grad = x.grad = None
        F.cross_entropy(F.linear(x, table), labels).backward()
    return turn


def attention(seq, dropout):
    given = [torch.randn(1, seq, 12, 64).transpose(1, 2).requires_grad_() for _ in range(3)]
    gradient = torch.randn(1, seq, 12, 64).transpose(1, 2)

    def turn():
        for t in given:
            t.grad = None
        F.scaled_dot_product_attention(*given, is_causal=True, dropout_p=dropout).backward(gradient)
    return turn


def main():
    torch.set_num_threads(int(sys.argv[1]))
    turn = head_loss(*map(int, sys.argv[3:])) if sys.argv[2] == "head_loss" else attention(int(sys.argv[3]), float(sys.argv[4]))
    for line in sys.stdin:
        best = 1e9
        for _ in range(int(line)):
            begin = time.perf_counter()
            turn()
            best = min(best, time.perf_counter() - begin)
        print(f"{best:.6f}", flush=True)
    print(0, flush=True)


if __name__ == "__main__":
    main()
