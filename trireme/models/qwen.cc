// Qwen2 (Yang et al., 2024), with biases on query, key and value; Qwen3 (2025), which normalises queries and keys head by
// head, and its mixture of experts.
#include <algorithm>

#include "trireme/models/blocks/llama_like.h"

namespace trireme::models {
namespace {

// No constant of the file: families may be asked for before those are made.
DecoderConfig qwen() {
  return {.vocab_size = 151936, .hidden = 4096, .layers = 32, .heads = 32, .kv_heads = 32, .inner = 22016, .norm_eps = 1e-6};
}

// A window on layers from max_window_layers on, or where layer_types says so, if it is switched on.
void read_windows(ConfigReader& get, LlamaLike& like) {
  bool windows = false;
  int64_t first = 28;
  std::optional<int64_t> window = 4096;
  get("use_sliding_window", windows);
  get("sliding_window", window);
  get("max_window_layers", first, 0);
  if (!windows) window.reset();
  like.read_layer_types(get, window.value_or(0), [&](int64_t layer) { return window && layer >= first; });
}

DecoderConfig read_qwen2(ConfigReader& get) {
  LlamaLike like(get, qwen(), {.positions = 32768});
  read_windows(get, like);
  get.only("use_mrope", false);
  like.config.query_bias = true;
  return like.config;
}

void read_qwen3_attention(ConfigReader& get, DecoderConfig& c) {
  bool bias = false;
  get("attention_bias", bias);
  c.query_bias = c.attention_out_bias = bias;
  c.names.query_norm = "self_attn.q_norm";
  c.names.key_norm = "self_attn.k_norm";
}

DecoderConfig read_qwen3(ConfigReader& get) {
  LlamaLike like(get, qwen(), {.positions = 32768, .head_size = 128});
  read_windows(get, like);
  read_qwen3_attention(get, like.config);
  return like.config;
}

DecoderConfig read_qwen3_moe(ConfigReader& get) {
  LlamaLike like(get, {.vocab_size = 151936, .hidden = 2048, .layers = 24, .heads = 32, .kv_heads = 4, .inner = 6144, .norm_eps = 1e-6},
                 {.positions = 32768});
  DecoderConfig& c = like.config;
  bool windows = false;
  get("use_sliding_window", windows);
  like.read_window(get, 4096);
  if (!windows) c.windows.clear();
  get.ignore({"max_window_layers", "layer_types", "shared_expert_intermediate_size"});
  read_qwen3_attention(get, c);
  c.names.router = "mlp.gate";
  c.names.expert_gate = "mlp.experts.*.gate_proj";
  c.names.expert_up = "mlp.experts.*.up_proj";
  c.names.expert_down = "mlp.experts.*.down_proj";
  c.experts = {.count = 128, .chosen = 8, .inner = 768, .normalize = false};
  get.either("num_experts", "num_local_experts", c.experts.count);
  get("num_experts_per_tok", c.experts.chosen);
  get("moe_intermediate_size", c.experts.inner);
  get("norm_topk_prob", c.experts.normalize);
  read_balance(get, c);
  int64_t step = 1;
  get("decoder_sparse_step", step);
  std::vector<int64_t> dense;
  if (const base::Json* given = get.value_of("mlp_only_layers")) dense = given->get<std::vector<int64_t>>();
  for (int64_t i = 0; i < c.layers; ++i)
    c.experts.layers.push_back((i + 1) % step == 0 && std::ranges::find(dense, i) == dense.end());
  return c;
}

}  // namespace

Family qwen2_family() { return decoder_family({.name = "qwen2", .class_name = "Qwen2", .answers = true}, read_qwen2); }
Family qwen3_family() { return decoder_family({.name = "qwen3", .class_name = "Qwen3", .answers = true}, read_qwen3); }
Family qwen3_moe_family() { return decoder_family({.name = "qwen3_moe", .class_name = "Qwen3Moe", .answers = true}, read_qwen3_moe); }

}  // namespace trireme::models
