"""Decoders for hf_families_test.cc: one small random model of each, with uneven sizes."""
import sys

import torch
import transformers as hf

import hf_case

VOCAB, ROWS, SEQ = 131, 6, 19


def causal(root, name, model, **facts):
    hf_case.randomize(model)
    ids = torch.randint(0, VOCAB, (ROWS, SEQ))
    inputs = {"input_ids": ids, "labels": hf_case.uneven_labels(ids, causal=True)}

    def run(model, inputs):
        logits = model(inputs["input_ids"]).logits
        return hf_case.cross_entropy(logits, inputs["labels"]), {"logits": logits}

    hf_case.write(root, name, model, inputs, run, **facts)


def gpt2(root):
    variants = {
        "tied_fp32": (torch.float32, dict(n_head=4)),
        "tied_fp64": (torch.float64, dict(n_head=4)),
        "untied_relu_fp64": (torch.float64, dict(n_head=4, tie_word_embeddings=False, activation_function="relu",
                                                 n_inner=72, scale_attn_by_inverse_layer_idx=True)),
    }
    for name, (dtype, overrides) in variants.items():
        config = hf.GPT2Config(n_layer=4, n_embd=32, n_positions=24, vocab_size=VOCAB, layer_norm_epsilon=1e-4,
                               resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=130, eos_token_id=130, **overrides)
        causal(root, f"gpt2_{name}", hf.GPT2LMHeadModel(config).to(dtype), blocks=4, tp=[1, 2, 4])


if __name__ == "__main__":
    for family in (gpt2,):
        torch.manual_seed(7)
        family(sys.argv[1])
