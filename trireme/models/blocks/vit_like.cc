#include "trireme/models/blocks/vit_like.h"

#include "trireme/base/error.h"

namespace trireme::models {
namespace {

constexpr int64_t kImageSize = 224, kPatchSize = 16;

}  // namespace

void visit(ConfigReader& get, VitConfig& c) {
  get("hidden_size", c.hidden_size);
  get("num_hidden_layers", c.num_hidden_layers);
  get("num_attention_heads", c.num_attention_heads);
  get("intermediate_size", c.intermediate_size);
  get("num_channels", c.num_channels);
  get("hidden_dropout_prob", c.hidden_dropout_prob, 0, 0.999);
  get("attention_probs_dropout_prob", c.attention_probs_dropout_prob, 0, 0.999);
  get("initializer_range", c.initializer_range, 0, 10);
  get("layer_norm_eps", c.layer_norm_eps, 0, 1);
  get("hidden_act", c.hidden_act);
  get("qkv_bias", c.qkv_bias);
  get.ignore({"image_size", "patch_size", "encoder_stride", "pooler_output_size", "pooler_act"});
}

void read_sizes(const base::Json& tree, VitConfig& c) {
  c.image = size_of(tree, "image_size", kImageSize);
  c.patch = size_of(tree, "patch_size", kPatchSize);
}

void write_sizes(base::Json& resolved) {
  for (const auto& [key, otherwise] :
       {std::pair{"image_size", kImageSize}, {"patch_size", kPatchSize}})
    if (!resolved.contains(key)) resolved[key] = otherwise;
}

void check(const VitConfig& c) {
  check_divides("num_attention_heads", c.num_attention_heads, "hidden_size", c.hidden_size);
  nn::find_activation(c.hidden_act);
  if (vit_patches(c, "").patches() < 1)
    throw base::ConfigError("model.patch_size is larger than model.image_size; lower it");
}

PatchSpec vit_patches(const VitConfig& c, const std::string& base,
                      const std::vector<std::string>& tokens) {
  const std::string e = base + ".embeddings.";
  PatchSpec patches{.projection = e + "patch_embeddings.projection",
                    .tokens = {},
                    .places = e + "position_embeddings",
                    .channels = c.num_channels,
                    .height = c.image.first,
                    .width = c.image.second,
                    .patch_height = c.patch.first,
                    .patch_width = c.patch.second,
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

std::string vit_block_name(const std::string& base, int64_t i) {
  return fmt::format("{}.encoder.layer.{}", base, i);
}

}  // namespace trireme::models
