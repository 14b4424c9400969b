// Llama 1 to 3 (Touvron et al., 2023; Grattafiori et al., 2024) and Mistral (Jiang et al., 2023), which attends within a
// window.
#include "trireme/models/blocks/llama_like.h"

namespace trireme::models {
namespace {

DecoderConfig read_llama(ConfigReader& get) {
  LlamaLike like(get, {.vocab_size = 32000, .hidden = 4096, .layers = 32, .heads = 32, .inner = 11008, .norm_eps = 1e-6},
                 {.positions = 2048});
  DecoderConfig& c = like.config;
  bool bias = false;
  get("attention_bias", bias);
  c.query_bias = c.attention_out_bias = bias;
  get("mlp_bias", c.mlp_bias);
  return c;
}

DecoderConfig read_mistral(ConfigReader& get) {
  LlamaLike like(get, {.vocab_size = 32000, .hidden = 4096, .layers = 32, .heads = 32, .kv_heads = 8, .inner = 14336, .norm_eps = 1e-6},
                 {.positions = 131072});
  like.read_window(get, 4096);
  return like.config;
}

}  // namespace

Family llama_family() { return decoder_family({.name = "llama", .class_name = "Llama", .answers = true}, read_llama); }
Family mistral_family() { return decoder_family({.name = "mistral", .class_name = "Mistral", .answers = true}, read_mistral); }

}  // namespace trireme::models
