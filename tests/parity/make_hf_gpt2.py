"""Writes random Hugging Face GPT-2 models with their own numbers: the oracle of hf_gpt2_test.cc.

For each variant a folder with config.json, model.safetensors and expected.safetensors: input_ids, labels (already
shifted; -100 ignored), logits, loss, and the gradient of every parameter of the mean loss.
"""
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

VARIANTS = {
    "tied_fp32": (torch.float32, dict(n_head=4)),
    "tied_fp64": (torch.float64, dict(n_head=4)),
    "untied_relu_fp64": (torch.float64, dict(n_head=4, tie_word_embeddings=False, activation_function="relu", n_inner=72,
                                             scale_attn_by_inverse_layer_idx=True)),
}


def make(folder, dtype, overrides):
    torch.manual_seed(7)
    config = GPT2Config(n_layer=4, n_embd=32, n_positions=24, vocab_size=131, layer_norm_epsilon=1e-4,
                        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=130, eos_token_id=130, **overrides)
    model = GPT2LMHeadModel(config).to(dtype)
    with torch.no_grad():
        for p in model.parameters():  # distinct biases and norms, logits away from uniform
            p.add_(torch.randn_like(p) * 0.1)
    ids = torch.randint(0, 131, (6, 19))
    labels = torch.roll(ids, -1, 1)
    labels[:, -1] = -100
    for row, ignored in enumerate([0, 3, 11, 18, 5, 1]):  # uneven counts
        labels[row, :ignored] = -100
    logits = model(ids).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, 131), labels.reshape(-1), ignore_index=-100)
    loss.backward()
    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    tied = config.tie_word_embeddings
    parameters = dict(model.named_parameters())
    save_file({k: v.detach().clone() for k, v in parameters.items()}, folder / "model.safetensors")
    expected = {f"grad.{k}": v.grad.clone() for k, v in parameters.items()}
    assert tied == ("lm_head.weight" not in parameters)
    expected |= {"input_ids": ids, "labels": labels, "logits": logits.detach().clone(), "loss": loss.detach().reshape(1)}
    save_file(expected, folder / "expected.safetensors")


if __name__ == "__main__":
    for name, (dtype, overrides) in VARIANTS.items():
        make(pathlib.Path(sys.argv[1]) / name, dtype, overrides)
