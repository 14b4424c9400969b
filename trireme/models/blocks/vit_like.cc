#include "trireme/models/blocks/vit_like.h"

namespace trireme::models {

void visit(ConfigReader& get, VitConfig& c) {
  visit(get, static_cast<EncoderKeys&>(c));
  visit_dropouts(get, c);
  get("num_channels", c.num_channels);
  get("qkv_bias", c.qkv_bias);
  get.ignore({"image_size", "patch_size", "encoder_stride", "pooler_output_size", "pooler_act"});
}

PatchSpec vit_patches(const VitConfig& c, const std::string& base,
                      const std::vector<std::string>& tokens) {
  const std::string e = base + ".embeddings.";
  PatchSpec patches{.projection = e + "patch_embeddings.projection",
                    .tokens = {},
                    .places = e + "position_embeddings",
                    .channels = c.num_channels,
                    .height = c.sizes.image.first,
                    .width = c.sizes.image.second,
                    .patch_height = c.sizes.patch.first,
                    .patch_width = c.sizes.patch.second,
                    .hidden = c.hidden_size,
                    .dropout = c.hidden_dropout_prob,
                    .deviation = c.initializer_range};
  for (const std::string& token : tokens) patches.tokens.push_back(e + token);
  return patches;
}

BlockSpec vit_block(const VitConfig& c, const Positions& positions) {
  return {.hidden = c.hidden_size,
          .heads = c.num_attention_heads,
          .inner = c.intermediate_size,
          .self = {"attention.attention.query", "attention.attention.key",
                   "attention.attention.value", "attention.output.dense", "layernorm_before"},
          .mlp = {.in = "intermediate.dense", .out = "output.dense", .norm = "layernorm_after"},
          .norm = {.eps = c.layer_norm_eps},
          .norm_first = true,
          .qkv_bias = c.qkv_bias,
          .activation = c.hidden_act,
          .dropout = c.hidden_dropout_prob,
          .attention_dropout = c.attention_probs_dropout_prob,
          .mask = "",
          .deviations = Deviations::all(c.initializer_range),
          .positions = positions};
}

std::vector<std::string> vit_blocks(const VitConfig& c, const std::string& base) {
  return numbered(base + ".encoder.layer", c.num_hidden_layers);
}

}  // namespace trireme::models
