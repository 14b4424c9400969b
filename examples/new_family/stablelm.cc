// StableLM (Bellagente et al., 2024): Llama with norms that have a mean and a bias, rotary positions on a quarter of each
// head, and on request attention and MLP side by side.
#include <cmath>

#include "trireme/base/plugin.h"
#include "trireme/models/blocks/decoder.h"
#include "trireme/models/blocks/rope.h"

namespace {

using namespace trireme::models;

DecoderConfig read(ConfigReader& get) {
  DecoderConfig c{.vocab_size = 50304, .hidden = 2560, .layers = 32, .heads = 32, .kv_heads = 32, .inner = 6912};
  c.names.gate = "mlp.gate_proj";
  get("vocab_size", c.vocab_size);
  get("hidden_size", c.hidden);
  get("num_hidden_layers", c.layers);
  get("num_attention_heads", c.heads);
  get("num_key_value_heads", c.kv_heads);
  get("intermediate_size", c.inner);
  get("hidden_act", c.activation);
  get("layer_norm_eps", c.norm_eps, 0, 1);
  get("initializer_range", c.init, 0, 10);
  get("tie_word_embeddings", c.tied);
  get("use_qkv_bias", c.query_bias);
  get("use_parallel_residual", c.parallel);
  if (c.parallel) c.names.mlp_norm = "";  // both read the same norm
  get("attention_dropout", c.attention_dropout, 0, 0.999);
  get.only("hidden_dropout", 0.0);  // which only the MLP would have
  get.only("qk_layernorm", false);
  read_padding(get, c);
  c.head_size = head_size_of(c);
  c.scale = 1 / std::sqrt(static_cast<double>(c.head_size));
  int64_t positions = 4096;
  get("max_position_embeddings", positions);
  c.rotary = {read_rope(get, {.head_size = c.head_size, .max_positions = positions, .share = 0.25})};
  return c;
}

}  // namespace

TRIREME_PLUGIN() { families().add("stablelm", decoder_family({.name = "stablelm", .class_name = "StableLm"}, read)); }
