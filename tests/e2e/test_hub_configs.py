"""config.json as the hub has it, of the first model of each family: keys of every version of transformers, those that say
nothing about the arithmetic included. Each is taken as it is, and comes to as many weights as the model has."""

import json

import pytest

from support import trireme

# What transformers 4 wrote into each part of a configuration of several.
EVERY = {
    "return_dict": True, "output_hidden_states": False, "output_attentions": False, "torchscript": False, "torch_dtype": None,
    "use_bfloat16": False, "tf_legacy_loss": False, "pruned_heads": {}, "tie_word_embeddings": True,
    "chunk_size_feed_forward": 0, "is_encoder_decoder": False, "is_decoder": False, "cross_attention_hidden_size": None,
    "add_cross_attention": False, "tie_encoder_decoder": False, "architectures": None, "finetuning_task": None,
    "id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1}, "tokenizer_class": None,
    "prefix": None, "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "sep_token_id": None,
    "decoder_start_token_id": None, "task_specific_params": None, "problem_type": None, "_name_or_path": "",
    "transformers_version": "4.24.0", "max_length": 20, "min_length": 0, "do_sample": False, "early_stopping": False,
    "num_beams": 1, "num_beam_groups": 1, "diversity_penalty": 0.0, "temperature": 1.0, "top_k": 50, "top_p": 1.0,
    "typical_p": 1.0, "repetition_penalty": 1.0, "length_penalty": 1.0, "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0, "bad_words_ids": None, "num_return_sequences": 1, "output_scores": False,
    "return_dict_in_generate": False, "forced_bos_token_id": None, "forced_eos_token_id": None,
    "remove_invalid_values": False, "exponential_decay_length_penalty": None, "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
SUMMARY = {"summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
           "summary_type": "cls_index", "summary_use_proj": True}
SAMPLE = {"text-generation": {"do_sample": True, "max_length": 50}}
BART_LABELS = {"id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"},
               "label2id": {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}}


def tower(model_type, **keys):
    return {**EVERY, "model_type": model_type, "attention_dropout": 0.0, "dropout": 0.0, "hidden_act": "quick_gelu",
            "initializer_factor": 1.0, "initializer_range": 0.02, "layer_norm_eps": 1e-05, "projection_dim": 512, **keys}


def labels(count):
    return {"id2label": {str(i): f"kind {i}" for i in range(count)}, "label2id": {f"kind {i}": i for i in range(count)}}


def llama(model_type, architecture, hidden, layers, heads, kv_heads, inner, vocab, **keys):
    return {"architectures": [architecture], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": hidden,
            "initializer_range": 0.02, "intermediate_size": inner, "max_position_embeddings": 4096, "model_type": model_type,
            "num_attention_heads": heads, "num_hidden_layers": layers, "num_key_value_heads": kv_heads, "rms_norm_eps": 1e-05,
            "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.40.1", "use_cache": True,
            "attention_dropout": 0.0, "vocab_size": vocab, **keys}


def bert(model_type, architecture, **keys):
    return {"architectures": [architecture], "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1, "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072,
            "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": model_type, "num_attention_heads": 12,
            "num_hidden_layers": 12, "pad_token_id": 0, "type_vocab_size": 2, "vocab_size": 30522, **keys}


def t5(hidden, inner, layers, heads, **keys):
    return {"architectures": ["T5ForConditionalGeneration"], "d_ff": inner, "d_kv": 64, "d_model": hidden,
            "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1, "initializer_factor": 1.0,
            "is_encoder_decoder": True, "layer_norm_epsilon": 1e-06, "model_type": "t5", "num_heads": heads,
            "num_layers": layers, "output_past": True, "pad_token_id": 0, "relative_attention_num_buckets": 32,
            "use_cache": True, "vocab_size": 32128, **keys}


def bart(**keys):
    return {"_name_or_path": "bart-base", "activation_dropout": 0.1, "activation_function": "gelu", "add_bias_logits": False,
            "add_final_layer_norm": False, "architectures": ["BartModel"], "attention_dropout": 0.1, "bos_token_id": 0,
            "classif_dropout": 0.1, "classifier_dropout": 0.0, "d_model": 768, "decoder_attention_heads": 12,
            "decoder_ffn_dim": 3072, "decoder_layerdrop": 0.0, "decoder_layers": 6, "decoder_start_token_id": 2,
            "dropout": 0.1, "early_stopping": True, "encoder_attention_heads": 12, "encoder_ffn_dim": 3072,
            "encoder_layerdrop": 0.0, "encoder_layers": 6, "eos_token_id": 2, "forced_bos_token_id": 0,
            "forced_eos_token_id": 2, "gradient_checkpointing": False, "init_std": 0.02, "is_encoder_decoder": True,
            "max_position_embeddings": 1024, "model_type": "bart", "no_repeat_ngram_size": 3, "normalize_before": False,
            "normalize_embedding": True, "num_beams": 4, "num_hidden_layers": 6, "pad_token_id": 1, "scale_embedding": False,
            "task_specific_params": {"summarization": {"length_penalty": 1.0, "max_length": 128, "min_length": 12}},
            "torch_dtype": "float32", "transformers_version": "4.12.0.dev0", "use_cache": True, "vocab_size": 50265,
            **BART_LABELS, **keys}


def vit(model_type, architecture, **keys):
    return {"architectures": [architecture], "attention_probs_dropout_prob": 0.0, "encoder_stride": 16, "hidden_act": "gelu",
            "hidden_dropout_prob": 0.0, "hidden_size": 768, "image_size": 224, "initializer_range": 0.02,
            "intermediate_size": 3072, "layer_norm_eps": 1e-12, "model_type": model_type, "num_attention_heads": 12,
            "num_channels": 3, "num_hidden_layers": 12, "patch_size": 16, "qkv_bias": True, "torch_dtype": "float32",
            "transformers_version": "4.13.0.dev0", **keys}


def swin(model_type, architecture, **keys):
    return {"architectures": [architecture], "attention_probs_dropout_prob": 0.0, "depths": [2, 2, 6, 2],
            "drop_path_rate": 0.1, "embed_dim": 96, "encoder_stride": 32, "hidden_act": "gelu", "hidden_dropout_prob": 0.0,
            "hidden_size": 768, "image_size": 224, "initializer_range": 0.02, "layer_norm_eps": 1e-05, "mlp_ratio": 4.0,
            "model_type": model_type, "num_channels": 3, "num_heads": [3, 6, 12, 24], "num_layers": 4, "patch_size": 4,
            "path_norm": True, "qkv_bias": True, "torch_dtype": "float32", "transformers_version": "4.16.0.dev0",
            "use_absolute_embeddings": False, "window_size": 7, **labels(1000), **keys}


LLAMA3 = {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
          "rope_type": "llama3"}
PHI = dict(pad_token_id=32000, embd_pdrop=0.0, resid_pdrop=0.0, attention_bias=False, bos_token_id=1, eos_token_id=32000,
           original_max_position_embeddings=4096,
           auto_map={"AutoConfig": "configuration_phi3.Phi3Config", "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"})

# name: (configuration, elements that its class in transformers has: version 4's where 5 ties what its files hold apart)
CONFIGS = {
    "gpt2": ({"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
              "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
              "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
              "n_positions": 1024, "resid_pdrop": 0.1, **SUMMARY, "task_specific_params": SAMPLE, "vocab_size": 50257}, 124439808),
    "distilgpt2": ({"_num_labels": 1, "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
                    "attn_pdrop": 0.1, "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256,
                    "id2label": {"0": "LABEL_0"}, "initializer_range": 0.02, "label2id": {"LABEL_0": 0},
                    "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
                    "n_layer": 6, "n_positions": 1024, "resid_pdrop": 0.1, **SUMMARY, "task_specific_params": SAMPLE,
                    "vocab_size": 50257}, 81912576),
    "gpt_neo": ({"activation_function": "gelu_new", "architectures": ["GPTNeoForCausalLM"], "attention_dropout": 0,
                 "attention_layers": ["global", "local"] * 6, "attention_types": [[["global", "local"], 6]],
                 "bos_token_id": 50256, "embed_dropout": 0, "eos_token_id": 50256, "gradient_checkpointing": False,
                 "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": None, "layer_norm_epsilon": 1e-05,
                 "max_position_embeddings": 2048, "model_type": "gpt_neo", "num_heads": 12, "num_layers": 12,
                 "resid_dropout": 0, **SUMMARY, "task_specific_params": SAMPLE, "tokenizer_class": "GPT2Tokenizer",
                 "torch_dtype": "float32", "transformers_version": "4.9.0.dev0", "use_cache": True, "vocab_size": 50257,
                 "window_size": 256}, 125198592),
    "gptj": ({"activation_function": "gelu_new", "architectures": ["GPTJForCausalLM"], "attn_pdrop": 0.0,
              "bos_token_id": 50256, "embd_pdrop": 0.0, "eos_token_id": 50256, "gradient_checkpointing": False,
              "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gptj", "n_embd": 4096, "n_head": 16,
              "n_inner": None, "n_layer": 28, "n_positions": 2048, "resid_pdrop": 0.0, "rotary": True, "rotary_dim": 64,
              "scale_attn_weights": True, **SUMMARY, "task_specific_params": SAMPLE, "tie_word_embeddings": False,
              "tokenizer_class": "GPT2Tokenizer", "transformers_version": "4.18.0.dev0", "use_cache": True,
              "vocab_size": 50400}, 6050882784),
    "pythia": ({"architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "gelu",
                "hidden_size": 512, "initializer_range": 0.02, "intermediate_size": 2048, "layer_norm_eps": 1e-05,
                "max_position_embeddings": 2048, "model_type": "gpt_neox", "num_attention_heads": 8, "num_hidden_layers": 6,
                "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": False, "torch_dtype": "float16",
                "transformers_version": "4.24.0", "use_cache": True, "use_parallel_residual": True, "vocab_size": 50304}, 70426624),
    "gpt_neox": ({"architectures": ["GPTNeoXForCausalLM"], "attention_probs_dropout_prob": 0, "bos_token_id": 0,
                  "eos_token_id": 0, "hidden_act": "gelu_fast", "hidden_dropout_prob": 0, "hidden_size": 6144,
                  "initializer_range": 0.02, "intermediate_size": 24576, "layer_norm_eps": 1e-05,
                  "max_position_embeddings": 2048, "model_type": "gpt_neox", "num_attention_heads": 64,
                  "num_hidden_layers": 44, "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": False,
                  "torch_dtype": "float16", "transformers_version": "4.19.0.dev0", "use_cache": True, "vocab_size": 50432}, 20554567680),
    "opt": ({"_name_or_path": "opt-125m", "_remove_final_layer_norm": False, "activation_dropout": 0.0,
             "activation_function": "relu", "architectures": ["OPTForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 2,
             "do_layer_norm_before": True, "dropout": 0.1, "enable_bias": True, "eos_token_id": 2, "ffn_dim": 3072,
             "hidden_size": 768, "init_std": 0.02, "layer_norm_elementwise_affine": True, "layerdrop": 0.0,
             "max_position_embeddings": 2048, "model_type": "opt", "num_attention_heads": 12, "num_hidden_layers": 12,
             "pad_token_id": 1, "prefix": "</s>", "torch_dtype": "float16", "transformers_version": "4.21.0.dev0",
             "use_cache": True, "vocab_size": 50272, "word_embed_proj_dim": 768}, 125239296),
    "galactica": ({"_remove_final_layer_norm": False, "activation_dropout": 0.0, "activation_function": "gelu",
                   "architectures": ["OPTForCausalLM"], "attention_dropout": 0.1, "bos_token_id": 0,
                   "do_layer_norm_before": True, "dropout": 0.1, "enable_bias": False, "eos_token_id": 2, "ffn_dim": 3072,
                   "hidden_size": 768, "init_std": 0.02, "layer_norm_elementwise_affine": True, "layerdrop": 0.0,
                   "learned_embeddings": True, "max_position_embeddings": 2048, "model_type": "opt",
                   "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1, "scale_embeddings": False,
                   "torch_dtype": "float16", "transformers_version": "4.21.0.dev0", "use_cache": True, "vocab_size": 50000,
                   "word_embed_proj_dim": 768}, 124947456),
    "bloom": ({"apply_residual_connection_post_layernorm": False, "architectures": ["BloomForCausalLM"],
               "attention_dropout": 0.0, "attention_softmax_in_fp32": True, "bias_dropout_fusion": True, "bos_token_id": 1,
               "eos_token_id": 2, "hidden_dropout": 0.0, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
               "masked_softmax_fusion": True, "model_type": "bloom", "n_embed": 1024, "n_inner": None, "n_layer": 24,
               "num_attention_heads": 16, "offset_alibi": 100, "pad_token_id": 3, "pretraining_tp": 1, "seq_length": 2048,
               "skip_bias_add": True, "skip_bias_add_qkv": False, "slow_but_exact": False, "transformers_version": "4.20.0",
               "unk_token_id": 0, "use_cache": True, "vocab_size": 250880}, 559214592),
    "llama": (llama("llama", "LlamaForCausalLM", 4096, 32, 32, 32, 11008, 32000, pad_token_id=-1, rms_norm_eps=1e-06,
                    max_sequence_length=2048), 6738415616),
    "llama-2": (llama("llama", "LlamaForCausalLM", 4096, 32, 32, 32, 11008, 32000, pretraining_tp=1, rope_scaling=None,
                      _name_or_path="meta-llama/Llama-2-7b-hf"), 6738415616),
    "llama-3.1": (llama("llama", "LlamaForCausalLM", 4096, 32, 32, 8, 14336, 128256, attention_bias=False, mlp_bias=False,
                        bos_token_id=128000, eos_token_id=[128001, 128008, 128009], max_position_embeddings=131072,
                        pretraining_tp=1, rope_scaling={**LLAMA3, "factor": 8.0}, rope_theta=500000.0), 8030261248),
    "llama-3.2": (llama("llama", "LlamaForCausalLM", 2048, 16, 32, 8, 8192, 128256, attention_bias=False, mlp_bias=False,
                        head_dim=64, bos_token_id=128000, eos_token_id=128001, max_position_embeddings=131072,
                        pretraining_tp=1, rope_scaling=LLAMA3, rope_theta=500000.0, tie_word_embeddings=True), 1235814400),
    "mistral": (llama("mistral", "MistralForCausalLM", 4096, 32, 32, 8, 14336, 32000, max_position_embeddings=32768,
                      rope_theta=10000.0, sliding_window=4096), 7241732096),
    "mistral-nemo": (llama("mistral", "MistralForCausalLM", 5120, 40, 32, 8, 14336, 131072, head_dim=128,
                           max_position_embeddings=131072, rope_theta=1000000.0, sliding_window=None), 12247782400),
    "qwen2.5": (llama("qwen2", "Qwen2ForCausalLM", 896, 24, 14, 2, 4864, 151936, bos_token_id=151643, eos_token_id=151643,
                      max_position_embeddings=32768, max_window_layers=24, rms_norm_eps=1e-06, rope_theta=1000000.0,
                      sliding_window=32768, tie_word_embeddings=True, use_mrope=False, use_sliding_window=False), 494032768),
    "qwen3": (llama("qwen3", "Qwen3ForCausalLM", 1024, 28, 16, 8, 3072, 151936, attention_bias=False, head_dim=128,
                    max_position_embeddings=40960, max_window_layers=28, rms_norm_eps=1e-06, rope_scaling=None,
                    rope_theta=1000000, sliding_window=None, tie_word_embeddings=True, use_sliding_window=False), 596049920),
    "qwen3-moe": (llama("qwen3_moe", "Qwen3MoeForCausalLM", 2048, 2, 32, 4, 6144, 151936, attention_bias=False,
                        decoder_sparse_step=1, head_dim=128, max_position_embeddings=40960, max_window_layers=48,
                        mlp_only_layers=[], moe_intermediate_size=768, norm_topk_prob=True, num_experts=128,
                        num_experts_per_tok=8, output_router_logits=False, rms_norm_eps=1e-06, rope_scaling=None,
                        rope_theta=1000000.0, router_aux_loss_coef=0.001, sliding_window=None,
                        use_sliding_window=False), 1868573184),
    "gemma2": (llama("gemma2", "Gemma2ForCausalLM", 3584, 42, 16, 8, 14336, 256000, attention_bias=False,
                     attn_logit_softcapping=50.0, bos_token_id=2, cache_implementation="hybrid", eos_token_id=1,
                     final_logit_softcapping=30.0, head_dim=256, hidden_act="gelu_pytorch_tanh",
                     hidden_activation="gelu_pytorch_tanh", max_position_embeddings=8192, pad_token_id=0,
                     query_pre_attn_scalar=256, rms_norm_eps=1e-06, rope_theta=10000.0, sliding_window=4096,
                     sliding_window_size=4096, tie_word_embeddings=True), 9241705984),
    "gemma3": (llama("gemma3_text", "Gemma3ForCausalLM", 1152, 26, 4, 1, 6912, 262144, attention_bias=False,
                     attn_logit_softcapping=None, bos_token_id=2, cache_implementation="hybrid", eos_token_id=[1, 106],
                     final_logit_softcapping=None, head_dim=256, hidden_activation="gelu_pytorch_tanh",
                     max_position_embeddings=32768, pad_token_id=0, query_pre_attn_scalar=256, rms_norm_eps=1e-06,
                     rope_local_base_freq=10000, rope_scaling=None, rope_theta=1000000, sliding_window=512,
                     sliding_window_pattern=6, tie_word_embeddings=True), 999885952),
    "gemma3-270m": (llama("gemma3_text", "Gemma3ForCausalLM", 640, 18, 4, 1, 2048, 262144, _sliding_window_pattern=6,
                          attention_bias=False, attn_logit_softcapping=None, bos_token_id=2, eos_token_id=1,
                          final_logit_softcapping=None, head_dim=256, hidden_activation="gelu_pytorch_tanh",
                          layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 3, max_position_embeddings=32768,
                          pad_token_id=0, query_pre_attn_scalar=256, rms_norm_eps=1e-06, rope_local_base_freq=10000.0,
                          rope_scaling=None, rope_theta=1000000.0, sliding_window=512, use_bidirectional_attention=False,
                          tie_word_embeddings=True), 268098176),
    "phi-3": (llama("phi3", "Phi3ForCausalLM", 3072, 32, 32, 32, 8192, 32064, rope_scaling=None, rope_theta=10000.0,
                    sliding_window=2047, **PHI), 3821079552),
    "phi-3-128k": (llama("phi3", "Phi3ForCausalLM", 3072, 32, 32, 32, 8192, 32064, max_position_embeddings=131072,
                         rope_scaling={"long_factor": [1.0 + i for i in range(48)], "short_factor": [1.0] * 48,
                                       "type": "longrope"},
                         rope_theta=10000.0, sliding_window=262144, **PHI), 3821079552),
    "phi-4-mini": (llama("phi3", "Phi3ForCausalLM", 3072, 32, 24, 8, 8192, 200064, max_position_embeddings=131072,
                         full_attn_mod=1, interpolate_factor=1, lm_head_bias=False, mlp_bias=False,
                         partial_rotary_factor=0.75, tie_word_embeddings=True,
                         rope_scaling={"long_factor": [1.0 + i for i in range(48)], "short_factor": [1.0] * 48,
                                       "type": "longrope"},
                         rope_theta=10000.0, sliding_window=262144, **{**PHI, "pad_token_id": 199999}), 3836021760),
    "mixtral": (llama("mixtral", "MixtralForCausalLM", 4096, 32, 32, 8, 14336, 32000, max_position_embeddings=32768,
                      num_experts_per_tok=2, num_local_experts=8, output_router_logits=False, rope_theta=1000000.0,
                      router_aux_loss_coef=0.02, sliding_window=None, router_jitter_noise=0.0), 46702792704),
    "bert": (bert("bert", "BertForMaskedLM", gradient_checkpointing=False, position_embedding_type="absolute",
                  transformers_version="4.6.0.dev0", use_cache=True), 109514298),
    "bert-multilingual": (bert("bert", "BertForMaskedLM", directionality="bidi", pooler_fc_size=768,
                               pooler_num_attention_heads=12, pooler_num_fc_layers=3, pooler_size_per_head=128,
                               pooler_type="first_token_transform", vocab_size=119547, output_past=True), 177974523),
    "roberta": (bert("roberta", "RobertaForMaskedLM", bos_token_id=0, eos_token_id=2, layer_norm_eps=1e-05,
                     max_position_embeddings=514, pad_token_id=1, type_vocab_size=1, vocab_size=50265), 124697433),
    "distilbert": ({"activation": "gelu", "architectures": ["DistilBertForMaskedLM"], "attention_dropout": 0.1, "dim": 768,
                    "dropout": 0.1, "hidden_dim": 3072, "initializer_range": 0.02, "max_position_embeddings": 512,
                    "model_type": "distilbert", "n_heads": 12, "n_layers": 6, "output_past": True, "pad_token_id": 0,
                    "qa_dropout": 0.1, "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": False, "tie_weights_": True,
                    "transformers_version": "4.10.0.dev0", "vocab_size": 30522}, 66985530),
    "distilbert-sst2": ({"activation": "gelu", "architectures": ["DistilBertForSequenceClassification"],
                         "attention_dropout": 0.1, "dim": 768, "dropout": 0.1, "finetuning_task": "sst-2",
                         "hidden_dim": 3072, "id2label": {"0": "NEGATIVE", "1": "POSITIVE"}, "initializer_range": 0.02,
                         "label2id": {"NEGATIVE": 0, "POSITIVE": 1}, "max_position_embeddings": 512,
                         "model_type": "distilbert", "n_heads": 12, "n_layers": 6, "output_past": True, "pad_token_id": 0,
                         "qa_dropout": 0.1, "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": False, "tie_weights_": True,
                         "vocab_size": 30522}, 66955010),
    "albert": (bert("albert", "AlbertForMaskedLM", attention_probs_dropout_prob=0, bos_token_id=2,
                    classifier_dropout_prob=0.1, down_scale_factor=1, embedding_size=128, eos_token_id=3, gap_size=0,
                    hidden_act="gelu_new", hidden_dropout_prob=0, inner_group_num=1, net_structure_type=0,
                    num_hidden_groups=1, num_memory_blocks=0, position_embedding_type="absolute", vocab_size=30000), 11221680),
    "electra": (bert("electra", "ElectraForPreTraining", embedding_size=128, hidden_size=256, intermediate_size=1024,
                     num_attention_heads=4, position_embedding_type="absolute", summary_activation="gelu",
                     summary_last_dropout=0.1, summary_type="first", summary_use_proj=True), 13549057),
    "t5": (t5(512, 2048, 6, 8, n_positions=512,
              task_specific_params={"summarization": {"early_stopping": True, "prefix": "summarize: "}}), 60506624),
    "t5-v1.1": (t5(512, 1024, 8, 6, feed_forward_proj="gated-gelu", num_decoder_layers=8, tie_word_embeddings=False), 76961152),
    "flan-t5": (t5(768, 2048, 12, 12, classifier_dropout=0.0, dense_act_fn="gelu_new", feed_forward_proj="gated-gelu",
                   is_gated_act=True, n_positions=512, num_decoder_layers=12, relative_attention_max_distance=128,
                   tie_word_embeddings=False, transformers_version="4.24.0.dev0"), 247577856),
    "bart": (bart(), 139470681),
    "bart-cnn": (bart(_num_labels=3, architectures=["BartForConditionalGeneration"], extra_pos_embeddings=2,
                      force_bos_token_to_be_generated=True, length_penalty=2.0, max_length=142, min_length=56,
                      output_past=True, prefix=" ", save_step=58, static_position_embeddings=False), 139470681),
    "mt5": (t5(512, 1024, 8, 6, architectures=["MT5ForConditionalGeneration"], feed_forward_proj="gated-gelu", model_type="mt5",
               num_decoder_layers=8, tie_word_embeddings=False, tokenizer_class="T5Tokenizer", vocab_size=250112), 300176768),
    "mbart": (bart(_num_labels=3, activation_dropout=0.0, add_final_layer_norm=True, architectures=["MBartForConditionalGeneration"],
                   attention_dropout=0.0, d_model=1024, decoder_attention_heads=16, decoder_ffn_dim=4096, decoder_layers=12,
                   encoder_attention_heads=16, encoder_ffn_dim=4096, encoder_layers=12, model_type="mbart", normalize_before=True,
                   num_hidden_layers=12, output_past=True, scale_embedding=True, static_position_embeddings=False,
                   tokenizer_class="MBart50Tokenizer", vocab_size=250054), 611129542),
    "blenderbot": (bart(activation_dropout=0.0, add_final_layer_norm=True, architectures=["BlenderbotForConditionalGeneration"],
                        attention_dropout=0.0, d_model=1280, decoder_attention_heads=32, decoder_ffn_dim=5120, decoder_layers=12,
                        decoder_start_token_id=1, do_blenderbot_90_layernorm=True, encoder_attention_heads=32, encoder_ffn_dim=5120,
                        encoder_layers=2, encoder_no_repeat_ngram_size=3, extra_layer_norm=False, extra_pos_embeddings=0,
                        force_bos_token_to_be_generated=False, layernorm_variant="prelayernorm", max_position_embeddings=128,
                        model_type="blenderbot", normalize_before=True, normalize_embedding=False, num_hidden_layers=2,
                        pad_token_id=0, scale_embedding=True, static_position_embeddings=False, unk_token_id=3, vocab_size=8008), 364810568),
    "blenderbot-small": (bart(activation_dropout=0.0, architectures=["BlenderbotSmallForConditionalGeneration"], attention_dropout=0.0,
                              d_model=512, decoder_attention_heads=16, decoder_ffn_dim=2048, decoder_layers=8, decoder_start_token_id=1,
                              do_blenderbot_90_layernorm=True, encoder_attention_heads=16, encoder_ffn_dim=2048, encoder_layers=8,
                              extra_pos_embeddings=0, layernorm_variant="xlm", max_position_embeddings=512,
                              model_type="blenderbot-small", num_hidden_layers=8, pad_token_id=0, scale_embedding=True,
                              static_position_embeddings=False, unk_token_id=3, vocab_size=54944), 87563936),
    "vit": (vit("vit", "ViTForImageClassification", **labels(1000)), 86567656),
    "vit-21k": (vit("vit", "ViTModel"), 85798656),
    "deit": (vit("deit", "DeiTForImageClassificationWithTeacher", **labels(1000)), 87338192),
    "swin": (swin("swin", "SwinForImageClassification"), 28288354),
    "swinv2": (swin("swinv2", "Swinv2ForImageClassification", image_size=256, window_size=8,
                    pretrained_window_sizes=[0, 0, 0, 0]), 28347154),
    "clip": ({"_commit_hash": "0f3c", "architectures": ["CLIPModel"], "initializer_factor": 1.0,
              "logit_scale_init_value": 2.6592, "model_type": "clip", "projection_dim": 512,
              "text_config": tower("clip_text_model", hidden_size=512, intermediate_size=2048,
                                   max_position_embeddings=77, num_attention_heads=8, num_hidden_layers=12,
                                   vocab_size=49408),
              "text_config_dict": None, "torch_dtype": "float32", "transformers_version": None,
              "vision_config": tower("clip_vision_model", hidden_size=768, image_size=224, intermediate_size=3072,
                                     num_attention_heads=12, num_channels=3, num_hidden_layers=12, patch_size=32),
              "vision_config_dict": None}, 151277313),
}


def inspect(folder, model, *words, **options):
    config = folder / "run.yaml"
    config.write_text(json.dumps({"model": model, "data": {"seq_length": 16}, "train": {"train_micro_batch_size": 1}}))
    return trireme("inspect", "--config", config, *words, **options)


@pytest.mark.parametrize("name", CONFIGS)
def test_is_taken_as_it_is(name, tmp_path):
    config, elements = CONFIGS[name]
    parameters = json.loads(inspect(tmp_path, config, "--json").stdout)["parameters"]
    total = 0
    for parameter in parameters:
        count = 1
        for size in parameter["shape"]:
            count *= size
        total += count
    assert total == elements


@pytest.mark.parametrize("name", ["gpt2", "llama-2", "qwen2.5", "bert", "albert", "distilbert", "t5", "bart", "vit", "swin", "clip"])
def test_what_every_configuration_may_say_is_passed_over(name, tmp_path):
    """All of it, in each family and each tower."""
    config = CONFIGS[name][0]
    inspect(tmp_path, {**EVERY, **config})


@pytest.mark.parametrize("name,key,value", [
    ("llama-2", "quantization_config", {"bits": 4, "quant_method": "gptq"}),
    ("llama-2", "pruned_heads", {"1": [0]}),
    ("gpt2", "add_cross_attention", True),
    ("t5", "tie_encoder_decoder", True),
    ("qwen2.5", "use_mrope", True),
    ("qwen2.5", "dual_chunk_attention_config", {"chunk_size": 262144}),
    ("phi-3", "attention_bias", True),
    ("phi-4-mini", "lm_head_bias", True),
    ("bloom", "n_inner", 96),
    ("bart", "normalize_before", True),
    ("bert", "position_embedding_type", "relative_key"),
    ("gpt_neox", "hidden_dropout_prob", 0.1),
    ("galactica", "scale_embeddings", True),
    ("gemma2", "use_bidirectional_attention", True),
])
def test_what_changes_the_numbers_is_refused(name, key, value, tmp_path):
    said = inspect(tmp_path, {**CONFIGS[name][0], key: value}, code=2).stderr
    assert key in said, said


def test_towers_refuse_too(tmp_path):
    config = CONFIGS["clip"][0]
    text = {**config["text_config"], "add_cross_attention": True}
    said = inspect(tmp_path, {**config, "text_config": text}, code=2).stderr
    assert "model.text_config.add_cross_attention" in said, said
