// Mixtral (Jiang et al., 2024): Mistral with eight MLPs a layer, of which each token uses two.
#include "trireme/models/blocks/llama_like.h"

namespace trireme::models {
namespace {

DecoderConfig read(ConfigReader& get) {
  LlamaLike like(get, {.vocab_size = 32000, .hidden = 4096, .layers = 32, .heads = 32, .kv_heads = 8, .inner = 14336, .norm_eps = 1e-5},
                 {.positions = 131072, .theta = 1e6});
  DecoderConfig& c = like.config;
  like.read_window(get, std::nullopt);
  c.names.router = "block_sparse_moe.gate";
  c.names.expert_gate = "block_sparse_moe.experts.*.w1";
  c.names.expert_up = "block_sparse_moe.experts.*.w3";
  c.names.expert_down = "block_sparse_moe.experts.*.w2";
  c.experts = {.count = 8, .chosen = 2, .inner = c.inner};
  get.either("num_local_experts", "num_experts", c.experts.count);
  get("num_experts_per_tok", c.experts.chosen);
  get.only("router_jitter_noise", 0.0);
  read_balance(get, c);
  return c;
}

}  // namespace

Family mixtral_family() { return decoder_family({.name = "mixtral", .class_name = "Mixtral", .answers = true}, read); }

}  // namespace trireme::models
