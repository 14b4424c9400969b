"""Writes one case of the parity with Hugging Face: a folder with a random model and transformers' own numbers.

config.json, model.safetensors (every parameter, whatever ties it), expected.safetensors (`input.NAME` for each field of
the batch, `output.NAME`, `loss`, `grad.NAME`, and `after.NAME` for parameters after STEPS steps of AdamW) and case.json
(blocks of the chain, the type of numbers, the tensor-parallel sizes that its heads allow).
"""
import json
import pathlib

import torch
from safetensors.torch import save_file

torch.set_num_threads(1)
STEPS, LR, EPS = 3, 1e-2, 1e-4


def randomize(model):
    """Distinct biases and norms, logits away from uniform."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)


def uneven_labels(ids, causal):
    """Labels with another count of ignored ones in each row; shifted here where the model predicts the next token."""
    labels = ids.clone()
    if causal:
        labels = torch.roll(ids, -1, 1)
        labels[:, -1] = -100
    for row in range(len(ids)):
        labels[row, : (row * 5) % ids.shape[1]] = -100
    return labels


def cross_entropy(logits, labels):
    return torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=-100)


def same(name, tensor):
    return {name: tensor}


def write(root, name, model, inputs, run, *, blocks, tp=(1, 2), rename=same, ignore=(), dp=(1, 2), extra=None, layouts="all",
          config=None, bound=None, zero=(), buffers=()):
    """`run(model, inputs)` gives (loss, {output name: tensor}); the loss is a mean over counted items of all rows, or None
    where the head has none.

    `inputs` maps a field of our batch to a tensor whose first dimension is the row. `ignore` lists patterns' prefixes of
    parameters that the model has but does not use. `rename(name, tensor)` gives what a parameter is called in files, where
    that differs, or its pieces. `dp` lists data-parallel sizes that give the same numbers; `extra` holds more tensors to expect.
    `layouts`: "few" leaves most of them to the full run, "every" leaves none. `config` are keys that config.json gets in place of transformers'.
    `bound` is that of errors where the type's does not hold; `zero` lists endings of parameters whose gradients are zero in
    theory. `buffers` lists endings of buffers that belong to the weights.
    """
    folder = pathlib.Path(root) / name
    folder.mkdir(parents=True, exist_ok=True)
    dtype = next(model.parameters()).dtype
    model.train(False)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    if config:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | config))
    parameters = {k: v for k, v in model.named_parameters() if not k.startswith(tuple(ignore))}
    trained = {k: v for k, v in parameters.items() if v.requires_grad}
    parameters |= {k: v for k, v in model.named_buffers() if k.endswith(tuple(buffers))}

    def named(prefix, values):
        pieces = {}
        for name, value in values.items():
            pieces |= {prefix + k: v.detach().clone().contiguous() for k, v in rename(name, value).items()}
        return pieces

    save_file(named("", parameters), folder / "model.safetensors")
    expected = {f"input.{k}": v.contiguous() for k, v in inputs.items()}
    optimizer = torch.optim.AdamW(trained.values(), lr=LR, eps=EPS, weight_decay=0)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss, outs = run(model, inputs)
        if loss is None:
            expected |= {f"output.{k}": v.detach().clone().contiguous() for k, v in outs.items()}
            break
        loss.backward()
        if step == 0:
            expected |= {f"output.{k}": v.detach().clone().contiguous() for k, v in outs.items()}
            expected |= named("grad.", {k: v.grad for k, v in trained.items()})
            expected["loss"] = loss.detach().reshape(1)
        optimizer.step()
    expected |= (named("after.", parameters) if loss is not None else {}) | (extra or {})
    save_file(expected, folder / "expected.safetensors")
    case = {"blocks": blocks, "dtype": "fp64" if dtype == torch.float64 else "fp32", "tp": list(tp), "dp": list(dp), "layouts": layouts,
            "bound": bound, "zero": list(zero), "loss": loss is not None}
    (folder / "case.json").write_text(json.dumps(case))
