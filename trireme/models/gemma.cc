// Gemma 2 and the text part of Gemma 3 (Gemma Team, 2024 and 2025): norms on both sides of attention and MLP, windows on
// most layers; 2 caps scores and logits, 3 normalises queries and keys and turns layers with a window by angles of their own.
#include <cmath>

#include "trireme/models/blocks/llama_like.h"

namespace trireme::models {
namespace {

DecoderConfig read_gemma(ConfigReader& get, int64_t vocab, int64_t positions, int64_t every, std::optional<double> score_cap,
                         std::optional<double> logit_cap, LlamaLike::Rope rope) {
  LlamaLike like(get, {.vocab_size = vocab, .hidden = 2304, .layers = 26, .heads = 8, .kv_heads = 4, .inner = 9216, .tied = true,
                       .padding = 0, .norm_eps = 1e-6, .norm_offset = 1, .activation = "gelu_pytorch_tanh"},
                 {.positions = positions, .head_size = 256, .activation_key = "hidden_activation", .rope = rope});
  DecoderConfig& c = like.config;
  c.names.mlp_norm = "pre_feedforward_layernorm";
  c.names.attention_out_norm = "post_attention_layernorm";
  c.names.mlp_out_norm = "post_feedforward_layernorm";
  c.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(c.hidden)));  // a tensor in fp32 there
  bool bias = false;
  get("attention_bias", bias);
  c.query_bias = c.attention_out_bias = bias;
  int64_t scalar = 256;
  get("query_pre_attn_scalar", scalar);
  c.scale = 1 / std::sqrt(static_cast<double>(scalar));
  get("attn_logit_softcapping", score_cap, 0, 1e9);
  get("final_logit_softcapping", logit_cap, 0, 1e9);
  c.score_cap = score_cap.value_or(0);
  c.logit_cap = logit_cap.value_or(0);
  std::optional<int64_t> window = 4096;
  get("sliding_window", window);
  get("sliding_window_pattern", every);
  like.read_layer_types(get, window.value_or(0), [&](int64_t layer) { return (layer + 1) % every != 0; });
  get.only("use_bidirectional_attention", false);
  get.ignore({"hidden_act", "_sliding_window_pattern", "sliding_window_size"});
  return c;
}

DecoderConfig read_gemma2(ConfigReader& get) { return read_gemma(get, 256000, 8192, 2, 50.0, 30.0, LlamaLike::Rope::one); }

DecoderConfig read_gemma3(ConfigReader& get) {
  DecoderConfig c = read_gemma(get, 262208, 131072, 6, {}, {}, LlamaLike::Rope::by_layer_type);
  c.score_cap = 0;  // which Hugging Face's attention does not read
  c.names.query_norm = "self_attn.q_norm";
  c.names.key_norm = "self_attn.k_norm";
  return c;
}

}  // namespace

Family gemma2_family() { return decoder_family({.name = "gemma2", .class_name = "Gemma2"}, read_gemma2); }
Family gemma3_family() {
  return decoder_family(
      {.name = "gemma3_text", .class_name = "Gemma3Text", .token_classes = false, .causal_class = "Gemma3ForCausalLM"}, read_gemma3);
}

}  // namespace trireme::models
