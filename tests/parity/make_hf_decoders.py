"""Decoders for hf_families_test.cc: small random models of each family, with uneven sizes, distinct biases and norms."""
import contextlib
import copy
import sys

import torch
import transformers as hf

import hf_case

VOCAB, ROWS, SEQ, MICRO_BATCHES = 131, 6, 19, 3
HEAD = dict(vocab_size=VOCAB, bos_token_id=130, eos_token_id=130)


@contextlib.contextmanager
def wide():
    """Where transformers computes in fp32 whatever the weights are (norms, softmax), it computes in fp64."""
    narrow, to_float, softmax = torch.float32, torch.Tensor.float, torch.nn.functional.softmax
    torch.float32, torch.Tensor.float = torch.float64, lambda x: x.double() if x.dtype == torch.float64 else to_float(x)
    torch.nn.functional.softmax = lambda x, *words, dtype=None, **keys: softmax(
        x, *words, dtype=x.dtype if x.dtype == torch.float64 else dtype, **keys)
    try:
        yield
    finally:
        torch.float32, torch.Tensor.float, torch.nn.functional.softmax = narrow, to_float, softmax


def plain(model, inputs):
    out = model(inputs["input_ids"])
    return hf_case.cross_entropy(out.logits, inputs["labels"]), {"logits": out.logits}


def balanced(model, inputs):
    """With the router's balance loss, which is a function of a micro-batch: each weighs as much as its labels."""
    total, logits, loss = (inputs["labels"] != -100).sum(), [], 0
    for ids, labels in zip(inputs["input_ids"].chunk(MICRO_BATCHES), inputs["labels"].chunk(MICRO_BATCHES)):
        out = model(ids, output_router_logits=True)
        share = (labels != -100).sum().double() / total
        loss = loss + share * (hf_case.cross_entropy(out.logits, labels) + model.router_aux_loss_coef * out.aux_loss)
        logits.append(out.logits)
    return loss, {"logits": torch.cat(logits)}


def greedy(model, prompts):
    """What transformers continues prompts with, on a copy: rotary positions remember how long a text was."""
    model, found = copy.deepcopy(model).eval(), {}
    model.generation_config.eos_token_id = None
    for i, prompt in enumerate(prompts):
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=24 - prompt.shape[1],
                             do_sample=False, pad_token_id=0)
        found |= {f"prompt.{i}": prompt[0].clone(), f"greedy.{i}": out[0, prompt.shape[1]:].clone()}
    return found


def causal(root, name, model, run=plain, prompts=(5, 9), **facts):
    hf_case.randomize(model)
    ids = torch.randint(0, model.config.vocab_size, (ROWS, SEQ))
    inputs = {"input_ids": ids, "labels": hf_case.uneven_labels(ids, causal=True)}
    is_wide = next(model.parameters()).dtype == torch.float64
    with wide() if is_wide else contextlib.nullcontext():
        extra = greedy(model, [ids[i:i + 1, :length] for i, length in enumerate(prompts)])
        hf_case.write(root, name, model, inputs, run, extra=extra, **facts)


SUFFIXES = {"sequence_classification": "ForSequenceClassification", "token_classification": "ForTokenClassification",
            "question_answering": "ForQuestionAnswering", "embedding": "Model"}
PAD, CLASSES = 3, 5


def padded():
    """Rows of several lengths, filled up behind their texts."""
    ids, mask = torch.randint(4, VOCAB, (ROWS, SEQ)), torch.ones(ROWS, SEQ, dtype=torch.int64)
    for row in range(ROWS):
        mask[row, SEQ - (row * 4) % 11:] = 0 if row else 1
    return torch.where(mask.bool(), ids, PAD), mask


def under_head(root, name, model, head, prefix, rename, pooling="mean", **facts):
    """Another head than that of the words. `prefix`: of what the bare model's parameters are called here."""
    hf_case.randomize(model)
    ids, mask = padded()
    inputs, labels, config = {"input_ids": ids}, {}, {}
    if head == "sequence_classification":
        inputs["attention_mask"] = mask
        labels["labels"] = torch.randint(0, CLASSES, (ROWS,))
    if head == "token_classification":
        labels["labels"] = hf_case.uneven_labels(torch.randint(0, CLASSES, ids.shape), causal=False)
    if head == "question_answering":
        labels |= {"start_positions": torch.tensor([0, 3, SEQ, 2, 5, 1]), "end_positions": torch.tensor([2, 4, SEQ, 6, 5, SEQ + 2])}
    if head == "embedding":
        inputs["attention_mask"] = mask
        config["pooling"] = pooling

    def run(model, inputs):
        out = model(**inputs)
        if head == "embedding":
            states, counts = out.last_hidden_state, mask.unsqueeze(-1)
            last = states[torch.arange(ROWS), mask.sum(1) - 1]
            return None, {"embedding": last if pooling == "last" else (states * counts).sum(1) / counts.sum(1)}
        if head == "question_answering":
            return out.loss, {"scores": torch.stack([out.start_logits, out.end_logits], -1)}
        return out.loss, {"scores": out.logits}

    def named(name, tensor):
        if head == "embedding":
            name = prefix + name
        if head == "question_answering" and prefix == "model.":
            name = name.replace("transformer.", prefix)  # as some of these classes call it
        return rename(name, tensor)

    # Answers stay where all places are shifted alike.
    zero = ["qa_outputs.bias", "ln_f.bias"] if head == "question_answering" else []
    with wide() if next(model.parameters()).dtype == torch.float64 else contextlib.nullcontext():
        hf_case.write(root, name, model, inputs | labels, run, rename=named, config=config, layouts="few", zero=zero, **facts)


def family(name, config, model, common, variants, heads=(), under={}, rename=hf_case.same, **facts):
    """`variants` maps a suffix to (dtype, tensor-parallel sizes, overrides of the configuration, facts of the case). `heads` are
    those besides the words', on the second variant's type with the overrides `under`."""

    def make(root):
        for suffix, (dtype, tp, overrides, *more) in variants.items():
            made = model(config(**(HEAD | common | overrides))).to(dtype)
            causal(root, f"{name}_{suffix}", made, blocks=4, tp=tp, rename=rename, **facts, **dict(*more))
        class_name = model.__name__.removesuffix("ForCausalLM").removesuffix("LMHeadModel").replace("Gemma3", "Gemma3Text")
        dtype = list(variants.values())[1][0]
        for head, pooling in [(head, "mean") for head in heads] + [("embedding", "mean"), ("embedding", "last")]:
            keys = HEAD | common | dict(pad_token_id=PAD, num_labels=CLASSES, classifier_dropout=0) | under
            made = getattr(hf, class_name + SUFFIXES[head])(config(**keys)).to(dtype)
            case = f"{name}_{head}" if head != "embedding" else f"{name}_{head}_{pooling}"
            under_head(root, case, made, head, model.base_model_prefix + ".", rename, pooling, blocks=4, tp=[1, 2])

    return make


F32, F64 = torch.float32, torch.float64
ROWS_AND_TOKENS = ["sequence_classification", "token_classification"]
ROWS_AND_ANSWERS = ["sequence_classification", "question_answering"]
ALL = [*ROWS_AND_TOKENS, "question_answering"]
gpt2 = family(
    "gpt2", hf.GPT2Config, hf.GPT2LMHeadModel,
    dict(n_layer=4, n_embd=32, n_head=4, n_positions=24, layer_norm_epsilon=1e-4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0),
    {"tied_fp32": (F32, [1, 2, 4], {}), "tied_fp64": (F64, [1, 2, 4], {}),
     "untied_relu_fp64": (F64, [1, 2, 4], dict(tie_word_embeddings=False, activation_function="relu", n_inner=72,
                                               scale_attn_by_inverse_layer_idx=True))}, heads=ALL)
gpt_neo = family(
    "gpt_neo", hf.GPTNeoConfig, hf.GPTNeoForCausalLM,
    dict(num_layers=4, hidden_size=36, num_heads=6, max_position_embeddings=24, attention_types=[[["global", "local"], 2]],
         window_size=5, layer_norm_epsilon=1e-4),
    {"fp32": (F32, [1, 2], dict(activation_function="relu", intermediate_size=50)), "fp64": (F64, [1, 2], {})}, heads=ALL)
gptj = family(
    "gptj", hf.GPTJConfig, hf.GPTJForCausalLM,
    dict(n_layer=4, n_embd=48, n_head=6, n_positions=24, rotary_dim=4, layer_norm_epsilon=1e-4),
    {"fp32": (F32, [1, 2], dict(activation_function="silu")), "tied_fp64": (F64, [1, 2], dict(tie_word_embeddings=True, n_inner=50))}, heads=ROWS_AND_ANSWERS)


def old_head(name, tensor):
    return {name.replace("lm_head.", "embed_out."): tensor}


gpt_neox = family(
    "gpt_neox", hf.GPTNeoXConfig, hf.GPTNeoXForCausalLM,
    dict(num_hidden_layers=4, hidden_size=48, num_attention_heads=6, intermediate_size=50, max_position_embeddings=24,
         layer_norm_eps=1e-4),
    {"fp32": (F32, [1, 2], dict(rope_parameters={"rope_type": "default", "rope_theta": 700.0, "partial_rotary_factor": 0.5})),
     "sequential_fp64": (F64, [1, 2], dict(use_parallel_residual=False, hidden_act="gelu_new", attention_bias=False,
                                           tie_word_embeddings=True))}, heads=ALL, rename=old_head)
opt = family(
    "opt", hf.OPTConfig, hf.OPTForCausalLM,
    dict(num_hidden_layers=4, hidden_size=36, num_attention_heads=6, ffn_dim=50, max_position_embeddings=24, dropout=0),
    # Gradients of key biases are zero in theory: fp32 has nothing but noise there.
    {"fp32": (F32, [1, 2], dict(activation_function="gelu", enable_bias=False)),
     "350m_fp64": (F64, [1, 2], dict(do_layer_norm_before=False, word_embed_proj_dim=20)),
     "untied_fp64": (F64, [1, 2], dict(tie_word_embeddings=False, pad_token_id=3))},
    heads=ROWS_AND_ANSWERS, under=dict(do_layer_norm_before=False, word_embed_proj_dim=20))
bloom = family(
    "bloom", hf.BloomConfig, hf.BloomForCausalLM, dict(n_layer=4, hidden_size=36, n_head=6, layer_norm_epsilon=1e-4),
    {"fp32": (F32, [1, 2], {}), "after_norm_fp32": (F32, [1, 2], dict(apply_residual_connection_post_layernorm=True,
                                                                      tie_word_embeddings=False))}, heads=ALL)

LLAMA = dict(num_hidden_layers=4, hidden_size=48, num_attention_heads=8, num_key_value_heads=2, intermediate_size=50,
             max_position_embeddings=24, rms_norm_eps=1e-4)


def rope(kind, **more):
    return dict(rope_parameters={"rope_type": kind, "rope_theta": 500.0, **more})


llama = family(
    "llama", hf.LlamaConfig, hf.LlamaForCausalLM, LLAMA,
    {"fp32": (F32, [1, 2, 4], {}),
     "fp64": (F64, [1, 2, 4], dict(attention_bias=True, mlp_bias=True, hidden_act="gelu", head_dim=10)),
     "tied_linear_fp64": (F64, [1, 2], rope("linear", factor=3.0) | dict(tie_word_embeddings=True, num_key_value_heads=8)),
     "dynamic_fp32": (F32, [1, 2], rope("dynamic", factor=2.0) | dict(max_position_embeddings=11)),
     "llama3_fp32": (F32, [1, 2], rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                       original_max_position_embeddings=16)),
     "yarn_fp32": (F32, [1, 2], rope("yarn", factor=4.0, original_max_position_embeddings=12, beta_fast=4.0, beta_slow=0.5))}, heads=ALL)
mistral = family("mistral", hf.MistralConfig, hf.MistralForCausalLM, LLAMA | dict(sliding_window=6),
                 {"fp32": (F32, [1, 2, 4], {}), "fp64": (F64, [1, 2], dict(sliding_window=None, pad_token_id=3, tie_word_embeddings=True))}, heads=ALL)
qwen2 = family("qwen2", hf.Qwen2Config, hf.Qwen2ForCausalLM, LLAMA,
               {"fp32": (F32, [1, 2, 4], dict(use_sliding_window=True, sliding_window=5, max_window_layers=2)),
                "tied_fp64": (F64, [1, 2], dict(tie_word_embeddings=True))}, heads=ALL)
qwen3 = family("qwen3", hf.Qwen3Config, hf.Qwen3ForCausalLM, LLAMA | dict(head_dim=10),
               {"fp32": (F32, [1, 2, 4], {}), "fp64": (F64, [1, 2, 4], dict(attention_bias=True, tie_word_embeddings=True))}, heads=ALL)
GEMMA = LLAMA | dict(head_dim=10, query_pre_attn_scalar=12, sliding_window=6, pad_token_id=0)
gemma2 = family("gemma2", hf.Gemma2Config, hf.Gemma2ForCausalLM,
                GEMMA | dict(attn_logit_softcapping=4.0, final_logit_softcapping=6.0, attn_implementation="eager"),
                {"fp32": (F32, [1, 2, 4], {}), "fp64": (F64, [1, 2], dict(attention_bias=True, hidden_activation="silu"))}, heads=ROWS_AND_TOKENS)
gemma3 = family("gemma3", hf.Gemma3TextConfig, hf.Gemma3ForCausalLM, GEMMA,
                {"fp32": (F32, [1, 2, 4], dict(layer_types=["sliding_attention", "full_attention"] * 2)),
                 "scaled_fp64": (F64, [1, 2], dict(sliding_window_pattern=3, final_logit_softcapping=5.0, rope_parameters={
                     "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 900.0},
                     "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}))}, heads=["sequence_classification"])
phi3 = family("phi3", hf.Phi3Config, hf.Phi3ForCausalLM, LLAMA | dict(pad_token_id=None, original_max_position_embeddings=24),
              {"fp32": (F32, [1, 2, 4], dict(sliding_window=7)),
               "long_fp64": (F64, [1, 2], dict(
                   original_max_position_embeddings=12, num_key_value_heads=8, tie_word_embeddings=True,
                   rope_parameters={"rope_type": "longrope", "rope_theta": 500.0, "partial_rotary_factor": 1.0,
                                    "short_factor": [1.0, 1.1, 1.2], "long_factor": [1.0, 2.0, 3.5]}),
                             # transformers begins anew where a text outgrows the short factors.
                             dict(prompts=(13, 15)))}, heads=ROWS_AND_TOKENS)


def experts(scope, gate, up, down):
    """The names of hub files: a matrix for each expert."""

    def rename(name, tensor):
        name = name.replace(".mlp.", f".{scope}.")
        if name.endswith("experts.down_proj"):
            return {f"{name.removesuffix('down_proj')}{e}.{down}.weight": part for e, part in enumerate(tensor)}
        if not name.endswith("experts.gate_up_proj"):
            return {name: tensor}
        parts = {}
        for e, part in enumerate(tensor):
            for what, half in zip((gate, up), part.chunk(2)):
                parts[f"{name.removesuffix('gate_up_proj')}{e}.{what}.weight"] = half
        return parts

    return rename


EXPERTS = dict(experts_implementation="eager")
mixtral = family(
    "mixtral", hf.MixtralConfig, hf.MixtralForCausalLM, LLAMA | EXPERTS | dict(num_local_experts=5, num_experts_per_tok=2),
    {"fp32": (F32, [1, 2, 4], {}),
     "balance_fp64": (F64, [1, 2], dict(output_router_logits=True, router_aux_loss_coef=0.7, sliding_window=6,
                                          tie_word_embeddings=True),
                      dict(run=balanced, dp=[1]))},
    heads=ALL, rename=experts("block_sparse_moe", "w1", "w3", "w2"))
qwen3_moe = family(
    "qwen3_moe", hf.Qwen3MoeConfig, hf.Qwen3MoeForCausalLM,
    LLAMA | EXPERTS | dict(head_dim=10, num_experts=5, num_experts_per_tok=3, moe_intermediate_size=14, mlp_only_layers=[1]),
    {"fp32": (F32, [1, 2, 4], dict(norm_topk_prob=True)), "tied_fp64": (F64, [1, 2], dict(tie_word_embeddings=True))},
    heads=ALL, rename=experts("mlp", "gate_proj", "up_proj", "down_proj"))
stablelm = family(  # docs/add-a-model.md's
    "stablelm", hf.StableLmConfig, hf.StableLmForCausalLM,
    dict(num_hidden_layers=4, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, intermediate_size=50,
         max_position_embeddings=24, layer_norm_eps=1e-4),
    {"fp32": (F32, [1, 2, 4], dict(use_qkv_bias=True, tie_word_embeddings=True)),
     "parallel_fp64": (F64, [1, 2], dict(use_parallel_residual=True, hidden_act="gelu", tie_word_embeddings=False))},
    heads=ROWS_AND_TOKENS)


def vocabularies(root):
    """Those that no number of ranks divides, on 2, 4 and 8 tensor ranks."""
    small = dict(n_layer=2, n_embd=16, n_head=8, n_positions=24, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    gpt2 = hf.GPT2LMHeadModel(hf.GPT2Config(**HEAD | small | dict(vocab_size=50257)))
    small = LLAMA | dict(num_hidden_layers=2, hidden_size=16, num_key_value_heads=8)
    llama = hf.LlamaForCausalLM(hf.LlamaConfig(**HEAD | small | dict(vocab_size=65535)))
    for name, model in (("gpt2_50257_fp64", gpt2), ("llama_65535_fp64", llama)):
        causal(root, name, model.double(), blocks=2, tp=[1, 2, 4, 8], dp=[1], layouts="every")


if __name__ == "__main__":
    for make in (gpt2, gpt_neo, gptj, gpt_neox, opt, bloom, llama, mistral, qwen2, qwen3, gemma2, gemma3, phi3, mixtral,
                 qwen3_moe, stablelm, vocabularies):
        torch.manual_seed(7)
        make(sys.argv[1])
