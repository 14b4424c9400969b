// Phi-3 (Abdin et al., 2024): Llama with query, key and value in one weight, and gate and up in another.
#include "trireme/models/blocks/llama_like.h"

namespace trireme::models {
namespace {

DecoderConfig read(ConfigReader& get) {
  LlamaLike like(get, {.vocab_size = 32064, .hidden = 3072, .layers = 32, .heads = 32, .inner = 8192, .padding = 32000, .norm_eps = 1e-5},
                 {.positions = 4096});
  DecoderConfig& c = like.config;
  c.names.query = c.names.key = c.names.value = "self_attn.qkv_proj";
  c.names.gate = c.names.up = "mlp.gate_up_proj";
  get("resid_pdrop", c.residual_dropout, 0, 0.999);
  get.ignore({"embd_pdrop"});  // which Hugging Face does not read
  for (const char* key : {"attention_bias", "mlp_bias", "lm_head_bias"}) get.only(key, false);
  for (const char* key : {"full_attn_mod", "interpolate_factor"}) get.only(key, 1);
  like.read_window(get, std::nullopt);
  return c;
}

}  // namespace

Family phi3_family() { return decoder_family({.name = "phi3", .class_name = "Phi3"}, read); }

}  // namespace trireme::models
