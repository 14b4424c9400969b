// GPT-NeoX and Pythia (Black et al., 2022): rotary positions on a quarter of each head, attention and MLP side by side
// behind norms of their own; query, key and value of a head lie together.
#include <cmath>

#include "trireme/models/blocks/decoder.h"
#include "trireme/models/blocks/rope.h"

namespace trireme::models {
namespace {

DecoderConfig read(ConfigReader& get) {
  DecoderConfig c{.vocab_size = 50432, .hidden = 6144, .layers = 44, .heads = 64, .inner = 24576, .interleaved_heads = true,
                  .activation = "gelu", .mlp_bias = true, .parallel = true};
  c.names = {.model = "gpt_neox", .tokens = "embed_in", .final_norm = "final_layer_norm", .head = "embed_out",
             .query = "attention.query_key_value", .key = "", .value = "", .attention_out = "attention.dense",
             .up = "mlp.dense_h_to_4h", .down = "mlp.dense_4h_to_h", .token_classes = "classifier"};
  get("vocab_size", c.vocab_size);
  get("hidden_size", c.hidden);
  get("num_hidden_layers", c.layers);
  get("num_attention_heads", c.heads);
  get("intermediate_size", c.inner);
  get("layer_norm_eps", c.norm_eps, 0, 1);
  get("initializer_range", c.init, 0, 10);
  get("hidden_act", c.activation);
  get("tie_word_embeddings", c.tied);
  get("use_parallel_residual", c.parallel);
  get("attention_dropout", c.attention_dropout, 0, 0.999);
  get("hidden_dropout", c.residual_dropout, 0, 0.999);
  c.embedding_dropout = c.residual_dropout;
  for (const char* key : {"hidden_dropout_prob", "attention_probs_dropout_prob"}) get.only(key, 0.0);  // as its first files say it
  bool bias = true;
  get("attention_bias", bias);
  c.query_bias = c.attention_out_bias = bias;
  c.kv_heads = c.heads;
  c.head_size = head_size_of(c);
  c.scale = 1 / std::sqrt(static_cast<double>(c.head_size));
  int64_t positions = 2048;
  get("max_position_embeddings", positions);
  c.rotary = {read_rope(get, {.head_size = c.head_size, .max_positions = positions, .share = 0.25,
                              .theta_key = "rotary_emb_base", .share_key = "rotary_pct"})};
  return c;
}

}  // namespace

Family gpt_neox_family() { return decoder_family({.name = "gpt_neox", .class_name = "GPTNeoX", .answers = true}, read); }

}  // namespace trireme::models
