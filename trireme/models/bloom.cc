// BLOOM (BigScience, 2022): biases that grow with distance in place of positions, a norm after the embeddings.
#include <cmath>

#include "trireme/models/blocks/decoder.h"

namespace trireme::models {
namespace {

DecoderConfig read(ConfigReader& get) {
  DecoderConfig c{.heads_key = "n_head", .vocab_size = 250880, .hidden = 64, .layers = 2, .heads = 8, .tied = true, .query_bias = true,
                  .attention_out_bias = true, .interleaved_heads = true, .alibi = true, .activation = "gelu_new", .mlp_bias = true};
  c.names = {.model = "transformer", .tokens = "word_embeddings", .blocks = "h", .final_norm = "ln_f",
             .embedding_norm = "word_embeddings_layernorm", .query = "self_attention.query_key_value", .key = "", .value = "",
             .attention_out = "self_attention.dense", .up = "mlp.dense_h_to_4h", .down = "mlp.dense_4h_to_h",
             .token_classes = "classifier"};
  get("vocab_size", c.vocab_size);
  get.either("hidden_size", "n_embed", c.hidden);
  get.either("n_layer", "num_hidden_layers", c.layers);
  get.either("n_head", "num_attention_heads", c.heads);
  get("layer_norm_epsilon", c.norm_eps, 0, 1);
  get("initializer_range", c.init, 0, 10);
  get("tie_word_embeddings", c.tied);
  get("attention_dropout", c.attention_dropout, 0, 0.999);
  get("hidden_dropout", c.residual_dropout, 0, 0.999);
  c.classifier_dropout = c.residual_dropout;
  get("apply_residual_connection_post_layernorm", c.residual_of_norm);
  // How the sums of its training's tensor ranks were ordered, and what its kernels masked.
  get.ignore({"slow_but_exact", "offset_alibi", "attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion",
              "skip_bias_add", "skip_bias_add_qkv", "seq_length"});
  c.inner = 4 * c.hidden;
  get.only("n_inner", c.inner);
  c.kv_heads = c.heads;
  c.head_size = head_size_of(c);
  c.scale = 1 / std::sqrt(static_cast<double>(c.head_size));
  return c;
}

}  // namespace

Family bloom_family() { return decoder_family({.name = "bloom", .class_name = "Bloom", .answers = true}, read); }

}  // namespace trireme::models
