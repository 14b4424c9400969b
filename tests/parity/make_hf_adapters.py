"""Models with adapters of PEFT, for hf_families_test.cc: what is beside their weights is trained, the weights stay."""
import sys

import peft
import torch
import transformers as hf

import hf_case
import make_hf_decoders as decoders
import make_hf_encoders as encoders

LLAMA = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
F32, F64 = torch.float32, torch.float64


def adapted(model, targets, called=None, rename=hf_case.same, **settings):
    """The model with adapters in it, and what `hf_case.write` needs to know of it. `called`: the targets' names in files."""
    config = peft.LoraConfig(target_modules=targets, **settings)
    model = peft.inject_adapter_in_model(config, model).to(next(model.parameters()).dtype)

    def file_name(name, tensor):
        for inner, outer in ((".base_layer.", "."), (".lora_A.default.", ".lora_A."), (".lora_B.default.", ".lora_B."),
                             (".lora_magnitude_vector.default.weight", ".lora_magnitude_vector")):
            name = name.replace(inner, outer)
        return rename(name, tensor)

    return model, {"rename": file_name, "config": {"adapter": settings | {"target_modules": called or targets}}}


def decoder(root, name, made, targets, tp, dtype=F64, rename=hf_case.same, **settings):
    model, facts = adapted(made.to(dtype), targets, rename=rename, **settings)
    decoders.causal(root, name, model, blocks=4, tp=tp, **facts)


def gpt2(root):
    config = hf.GPT2Config(**decoders.HEAD, n_layer=4, n_embd=32, n_head=4, n_positions=24, layer_norm_epsilon=1e-4, resid_pdrop=0,
                           embd_pdrop=0, attn_pdrop=0)
    for kind, dtype, settings in (("lora_fp32", F32, {}), ("dora_fp64", F64, dict(use_dora=True))):
        decoder(root, f"gpt2_{kind}", hf.GPT2LMHeadModel(config), ["c_attn", "c_proj", "c_fc"], [1, 2, 4], dtype, r=3, lora_alpha=5,
                fan_in_fan_out=True, **settings)


def llama(root):
    more = dict(attention_bias=True, mlp_bias=True, head_dim=10)
    patterns = dict(rank_pattern={"layers.1.self_attn.q_proj": 5, r"layers\.[02]\..*_proj": 2, "q_proj": 4}, alpha_pattern={"up_proj": 1.5})
    for kind, settings in (("lora", patterns), ("dora", patterns | dict(use_dora=True, use_rslora=True))):
        config = hf.LlamaConfig(**decoders.HEAD, **decoders.LLAMA, **more)
        decoder(root, f"llama_{kind}_fp64", hf.LlamaForCausalLM(config), LLAMA, [1, 2, 4], r=3, lora_alpha=7, **settings)


def gpt_neox(root):
    config = hf.GPTNeoXConfig(**decoders.HEAD, num_hidden_layers=4, hidden_size=48, num_attention_heads=6, intermediate_size=50,
                              max_position_embeddings=24, layer_norm_eps=1e-4)
    for kind, settings in (("lora", {}), ("dora", dict(use_dora=True))):
        decoder(root, f"gpt_neox_{kind}_fp64", hf.GPTNeoXForCausalLM(config), ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"],
                [1, 2], rename=decoders.old_head, r=3, lora_alpha=5, **settings)


def phi3(root):
    config = hf.Phi3Config(**decoders.HEAD, **decoders.LLAMA, pad_token_id=None, original_max_position_embeddings=24)
    for kind, settings in (("lora", {}), ("dora", dict(use_dora=True))):
        decoder(root, f"phi3_{kind}_fp64", hf.Phi3ForCausalLM(config), ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"], [1, 2, 4],
                r=3, lora_alpha=5, **settings)


def albert(root):
    """Blocks that share their weights, and their adapters."""
    config = hf.AlbertConfig(**{k: v for k, v in encoders.SMALL.items() if k != "classifier_dropout"}, classifier_dropout_prob=0,
                             embedding_size=20)
    model, facts = adapted(hf.AlbertForMaskedLM(config).double(), ["query", "value", "ffn"], r=2, lora_alpha=3, use_dora=True)
    encoders.encoder(root, "albert_dora_fp64", model, "masked_lm", blocks=4, tp=[1, 2, 4], **facts)


def bart(root):
    for kind, settings in (("lora", {}), ("dora", dict(use_dora=True))):
        made = hf.BartForConditionalGeneration(hf.BartConfig(**encoders.BART)).double()
        made.final_logits_bias.normal_(0, 0.3)
        model, facts = adapted(made, ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"], r=2, lora_alpha=3, **settings)
        encoders.pair(root, f"bart_{kind}_fp64", model, blocks=5, tp=[1, 2, 4], buffers=["final_logits_bias"], **facts)


def vit(root):
    sizes = dict(num_hidden_layers=4, num_attention_heads=4, hidden_size=32, intermediate_size=44, image_size=[12, 8], patch_size=4,
                 num_channels=3, layer_norm_eps=1e-4, num_labels=5)
    for kind, settings in (("lora", {}), ("dora", dict(use_dora=True))):
        made = hf.ViTForImageClassification(hf.ViTConfig(**sizes)).double()
        model, facts = adapted(made, ["q_proj", "o_proj", "fc2", "classifier"], ["query", "output.dense", "classifier"],
                               encoders.file_name, r=2, lora_alpha=3, **settings)
        encoders.images(root, f"vit_{kind}_fp64", model, blocks=4, tp=[1, 2, 4], **facts)


if __name__ == "__main__":
    for family in (gpt2, llama, gpt_neox, phi3, albert, bart, vit):
        if len(sys.argv) > 2 and family.__name__ not in sys.argv[2:]:
            continue
        torch.manual_seed(7)
        family(sys.argv[1])
