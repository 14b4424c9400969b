"""The optimizers against torch.optim: five steps on tensors of several ranks."""

import json
import os
import subprocess

import pytest
import torch

SHAPES = [[17, 5], [40], [3, 4, 5], [1, 9], [1]]
STEPS, LR = 5, 0.02


def adamw(params, decay):
    return torch.optim.AdamW(params, lr=LR, betas=(0.9, 0.95), eps=1e-6, weight_decay=decay)


def adam(params, decay):
    return torch.optim.Adam(params, lr=LR, betas=(0.9, 0.95), eps=1e-6, weight_decay=decay)


def sgd(momentum, nesterov):
    return lambda params, decay: torch.optim.SGD(params, lr=LR, momentum=momentum, nesterov=nesterov, weight_decay=decay)


def adafactor(params, decay):
    return torch.optim.Adafactor(params, lr=LR, weight_decay=decay)


MOMENTS = {"betas": [0.9, 0.95], "eps": 1e-6}
CASES = {
    "adamw": ({"name": "adamw", **MOMENTS}, adamw),
    "adam": ({"name": "adam", **MOMENTS}, adam),
    "sgd": ({"name": "sgd", "momentum": 0}, sgd(0, False)),
    "momentum": ({"name": "sgd", "momentum": 0.9}, sgd(0.9, False)),
    "nesterov": ({"name": "sgd", "momentum": 0.9, "nesterov": True}, sgd(0.9, True)),
    "adafactor": ({"name": "adafactor"}, adafactor),
}


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("case", CASES)
def test_steps_as_torch_optim_does(case, decay):
    options, make = CASES[case]
    torch.manual_seed(7)
    params = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in SHAPES]
    question = {"optim": options, "weight_decay": decay, "lr": LR, "shapes": SHAPES,
                "params": [p.detach().flatten().tolist() for p in params], "grads": []}
    optimizer, want = make(params, decay), []
    for _ in range(STEPS):
        for p in params:
            p.grad = torch.randn_like(p)
        question["grads"].append([p.grad.flatten().tolist() for p in params])
        optimizer.step()
        want.append([p.detach().flatten().clone() for p in params])
    done = subprocess.run([os.environ["TRIREME_OPTIM_DRIVER"]], input=json.dumps(question) + "\n", capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    assert len(got) == STEPS
    for step in range(STEPS):
        for i in range(len(SHAPES)):
            torch.testing.assert_close(torch.tensor(got[step][i], dtype=torch.float64), want[step][i], rtol=1e-11, atol=1e-12)
