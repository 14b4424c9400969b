"""`ckpt convert --vocab-size`: every family with a vocabulary, smaller and larger, loads in transformers as if it had been
resized there."""

import json

import pytest
import torch
import transformers as hf
from safetensors import safe_open

from support import trireme

VOCAB = 61
LLAMA = dict(hidden_size=24, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, intermediate_size=20,
             max_position_embeddings=16, pad_token_id=None)
BERT = dict(hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=20, max_position_embeddings=16,
            pad_token_id=0)
BART = dict(d_model=24, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
            encoder_ffn_dim=20, decoder_ffn_dim=20, max_position_embeddings=16)
UNTIED = dict(tie_word_embeddings=False)
MODELS = {
    "gpt2": ("GPT2LMHeadModel", dict(n_layer=1, n_embd=24, n_head=2, n_positions=16)),
    "gpt_neo": ("GPTNeoForCausalLM", dict(hidden_size=24, num_layers=1, num_heads=2, max_position_embeddings=16,
                                          attention_types=[[["global"], 1]])),
    "gptj": ("GPTJForCausalLM", dict(n_embd=24, n_layer=1, n_head=2, n_positions=16, rotary_dim=4)),
    "gpt_neox": ("GPTNeoXForCausalLM", dict(hidden_size=24, num_hidden_layers=1, num_attention_heads=3, intermediate_size=20)),
    "opt": ("OPTForCausalLM", dict(hidden_size=24, num_hidden_layers=1, num_attention_heads=2, ffn_dim=20,
                                   max_position_embeddings=16, word_embed_proj_dim=12)),
    "bloom": ("BloomForCausalLM", dict(hidden_size=24, n_layer=1, n_head=2, pad_token_id=3)),
    "llama": ("LlamaForCausalLM", LLAMA),
    "mistral": ("MistralForCausalLM", LLAMA),
    "qwen2": ("Qwen2ForCausalLM", LLAMA | dict(tie_word_embeddings=True)),
    "qwen3": ("Qwen3ForCausalLM", LLAMA | dict(head_dim=8)),
    "gemma2": ("Gemma2ForCausalLM", LLAMA | dict(head_dim=8, pad_token_id=0)),
    "gemma3": ("Gemma3ForCausalLM", LLAMA | dict(head_dim=8, pad_token_id=0)),
    "phi3": ("Phi3ForCausalLM", LLAMA),
    "mixtral": ("MixtralForCausalLM", LLAMA | dict(num_local_experts=2)),
    "qwen3_moe": ("Qwen3MoeForCausalLM", LLAMA | dict(head_dim=8, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=8)),
    "bert": ("BertForMaskedLM", BERT),
    "bert_pretraining": ("BertForPreTraining", BERT),
    "bert_rows": ("BertForSequenceClassification", BERT),
    "megatron_bert": ("MegatronBertForMaskedLM", BERT),
    "roberta": ("RobertaForMaskedLM", BERT | dict(pad_token_id=1)),
    "distilbert": ("DistilBertForMaskedLM", dict(dim=24, n_layers=1, n_heads=2, hidden_dim=20, max_position_embeddings=16)),
    "albert": ("AlbertForMaskedLM", BERT | dict(embedding_size=12)),
    "electra": ("ElectraForMaskedLM", BERT | dict(embedding_size=12)),
    "electra_replaced": ("ElectraForPreTraining", BERT | dict(embedding_size=12)),
    "t5": ("T5ForConditionalGeneration", dict(d_model=24, d_kv=8, d_ff=20, num_layers=1, num_heads=2)),
    "t5_untied": ("T5ForConditionalGeneration", dict(d_model=24, d_kv=8, d_ff=20, num_layers=1, num_heads=2) | UNTIED),
    "bart": ("BartForConditionalGeneration", BART),
    "bart_decoder": ("BartForCausalLM", BART),
}


def make(name):
    torch.manual_seed(3)
    class_name, keys = MODELS[name]
    kind = getattr(hf, class_name)
    model = kind(kind.config_class(vocab_size=VOCAB, **keys)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.copy_(torch.randn(1, VOCAB))
    return model


def same(got, want, kept):
    assert got.keys() == want.keys()
    for name, tensor in got.items():
        assert tensor.shape == want[name].shape, name
        assert torch.allclose(tensor, want[name], atol=1e-4), name  # transformers draws new rows closely around the mean
        dim = next((i for i, size in enumerate(tensor.shape) if size != kept[name].shape[i]), None)
        both = tensor if dim is None else tensor.narrow(dim, 0, min(tensor.shape[dim], kept[name].shape[dim]))
        old = kept[name] if dim is None else kept[name].narrow(dim, 0, both.shape[dim])
        assert torch.equal(both, old), name


@pytest.mark.parametrize("name", MODELS)
def test_as_transformers_resizes(name, tmp_path):
    model = make(name)
    model.save_pretrained(tmp_path / "base")
    kept = {k: v.clone() for k, v in model.state_dict().items()}
    for size in (50, 77):
        model = type(model).from_pretrained(tmp_path / "base")
        out = tmp_path / str(size)
        trireme("ckpt", "convert", tmp_path / "base", out, "--to", "hf", "--vocab-size", size)
        got, said = type(model).from_pretrained(out, output_loading_info=True)
        assert not said["missing_keys"] and not said["unexpected_keys"] and not said["mismatched_keys"], said
        model.resize_token_embeddings(size)
        assert got.config.vocab_size == size
        same(got.state_dict(), model.state_dict(), kept)
        if name != "bart_decoder":  # whose files hold more than the model has
            trireme("ckpt", "convert", out, tmp_path / f"{size}_split", "--to", "split")


def test_towers_have_the_texts_vocabulary(tmp_path):
    torch.manual_seed(3)
    sizes = dict(hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=20)
    model = hf.CLIPModel(hf.CLIPConfig(text_config=sizes | dict(vocab_size=VOCAB, max_position_embeddings=16, eos_token_id=5),
                                       vision_config=sizes | dict(image_size=8, patch_size=4), projection_dim=16))
    model.save_pretrained(tmp_path / "base")
    for size in (50, 77):
        trireme("ckpt", "convert", tmp_path / "base", tmp_path / str(size), "--to", "hf", "--vocab-size", size)
        got = hf.CLIPModel.from_pretrained(tmp_path / str(size))
        assert got.config.text_config.vocab_size == size
        kept, table = model.text_model.embeddings.token_embedding.weight, got.text_model.embeddings.token_embedding.weight
        assert torch.equal(table[:min(size, VOCAB)], kept[:size])
        assert torch.allclose(table[VOCAB:], kept.mean(0).expand(max(0, size - VOCAB), -1), atol=1e-6)


def test_what_cannot_be_resized_is_refused(tmp_path):
    hf.ViTForImageClassification(hf.ViTConfig(hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=20,
                                              image_size=8, patch_size=4)).save_pretrained(tmp_path / "vit")
    said = trireme("ckpt", "convert", tmp_path / "vit", tmp_path / "x", "--to", "hf", "--vocab-size", 9, code=2).stderr
    assert "family vit has no vocabulary" in said
    model = make("opt")
    model.save_pretrained(tmp_path / "opt")
    config = json.loads((tmp_path / "opt/config.json").read_text())
    (tmp_path / "opt/config.json").write_text(json.dumps(config | {"pad_token_id": 55}))
    said = trireme("ckpt", "convert", tmp_path / "opt", tmp_path / "x", "--to", "hf", "--vocab-size", 50, code=2).stderr
    assert "pad_token_id" in said
    (tmp_path / "opt/config.json").write_text(json.dumps(config | {"vocab_size": 62}))
    said = trireme("ckpt", "convert", tmp_path / "opt", tmp_path / "x", "--to", "hf", "--vocab-size", 50, code=2).stderr
    assert "is [61, 12], expected [62, 12]" in said
    assert not (tmp_path / "x").exists()


def test_the_tokenizer_goes_along(tmp_path):
    make("gpt2").save_pretrained(tmp_path / "base")
    (tmp_path / "base/generation_config.json").write_text(json.dumps({"max_new_tokens": 7}))
    (tmp_path / "base/vocab.json").write_text("{}")
    trireme("ckpt", "convert", tmp_path / "base", tmp_path / "out", "--to", "hf", "--vocab-size", 64)
    assert json.loads((tmp_path / "out/generation_config.json").read_text()) == {"max_new_tokens": 7}
    with safe_open(tmp_path / "out/model.safetensors", "pt") as weights:
        assert weights.get_slice("transformer.wte.weight").get_shape() == [64, 24]
