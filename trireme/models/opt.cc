// OPT (Zhang et al., 2022): learned positions from the third row on; the 350M model has norms after the sums and token
// vectors of another width.
#include <cmath>

#include "trireme/models/blocks/decoder.h"

namespace trireme::models {
namespace {

DecoderConfig read(ConfigReader& get) {
  DecoderConfig c{.vocab_size = 50272, .hidden = 768, .layers = 12, .heads = 12, .inner = 3072, .tied = true,
                  .max_positions = 2048, .position_offset = 2, .activation = "relu"};
  c.names = {.model = "model.decoder", .final_norm = "final_layer_norm", .positions = "embed_positions",
             .attention_out = "self_attn.out_proj", .up = "fc1", .down = "fc2",
             .attention_norm = "self_attn_layer_norm", .mlp_norm = "final_layer_norm"};
  get("vocab_size", c.vocab_size);
  get("hidden_size", c.hidden);
  get("num_hidden_layers", c.layers);
  get("num_attention_heads", c.heads);
  get("ffn_dim", c.inner);
  get("max_position_embeddings", c.max_positions);
  get("init_std", c.init, 0, 10);
  get("activation_function", c.activation);
  get("tie_word_embeddings", c.tied);
  get("attention_dropout", c.attention_dropout, 0, 0.999);
  c.residual_dropout = 0.1;
  get("dropout", c.residual_dropout, 0, 0.999);
  std::optional<int64_t> width;
  get("word_embed_proj_dim", width);
  if (width && *width != c.hidden) {
    c.embedding_size = *width;
    c.names.project_in = "project_in";
    c.names.project_out = "project_out";
  }
  bool before = true, no_final_norm = false, bias = true;
  get("do_layer_norm_before", before);
  get("_remove_final_layer_norm", no_final_norm);
  get("enable_bias", bias);
  c.post_norm = !before;
  if (!before || no_final_norm) c.names.final_norm = "";
  c.query_bias = c.attention_out_bias = c.mlp_bias = bias;
  c.padding = 1;
  read_padding(get, c);
  get.only("layer_norm_elementwise_affine", true);
  get.only("layerdrop", 0.0);
  get.only("learned_embeddings", true);
  get.only("scale_embeddings", false);
  get.ignore({"activation_dropout"});
  c.kv_heads = c.heads;
  c.head_size = head_size_of(c);
  c.scale = 1 / std::sqrt(static_cast<double>(c.head_size));
  return c;
}

}  // namespace

Family opt_family() { return decoder_family({.name = "opt", .class_name = "OPT", .token_classes = false, .answers = true}, read); }

}  // namespace trireme::models
