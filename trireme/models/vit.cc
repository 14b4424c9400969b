// ViT (Dosovitskiy et al., 2021) and DeiT (Touvron et al., 2021), which has one token more. Names
// are those of Hugging Face's files.
#include "trireme/base/error.h"
#include "trireme/models/blocks/encoder.h"
#include "trireme/models/blocks/vision.h"
#include "trireme/models/family.h"

namespace trireme::models {
namespace {

struct VitConfig {
  int64_t hidden_size = 768, num_hidden_layers = 12, num_attention_heads = 12,
          intermediate_size = 3072, num_channels = 3;
  double hidden_dropout_prob = 0, attention_probs_dropout_prob = 0, initializer_range = 0.02,
         layer_norm_eps = 1e-12;
  std::string hidden_act = "gelu";
  bool qkv_bias = true;
};

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
}

/// `resolved`: the tree with every key as it came to be.
VitConfig read(const base::Json& tree, const std::string& family, base::Json* resolved = nullptr) {
  VitConfig c;
  ConfigReader get(tree, family);
  visit(get, c);
  get.ignore({"head", "num_labels", "pooling", "normalize", "image_size", "patch_size",
              "encoder_stride", "pooler_output_size", "pooler_act"});
  get.finish();
  if (resolved) *resolved = get.resolved();
  check_divides("num_attention_heads", c.num_attention_heads, "hidden_size", c.hidden_size);
  nn::find_activation(c.hidden_act);
  return c;
}

HeadKind kind_of(const base::Json& tree, const std::string& family) {
  return head_of(tree, family, {HeadKind::image_classification, HeadKind::embedding},
                 HeadKind::image_classification);
}

nn::ModelDef make(const base::Json& tree, int tp, const std::string& base,
                  const std::vector<std::string>& tokens) {
  const VitConfig c = read(tree, base);
  const auto [height, width] = size_of(tree, "image_size", 224);
  const auto [patch_height, patch_width] = size_of(tree, "patch_size", 16);
  PatchSpec patches{.projection = base + ".embeddings.patch_embeddings.projection",
                    .tokens = {},
                    .places = base + ".embeddings.position_embeddings",
                    .channels = c.num_channels,
                    .height = height,
                    .width = width,
                    .patch_height = patch_height,
                    .patch_width = patch_width,
                    .hidden = c.hidden_size,
                    .dropout = c.hidden_dropout_prob,
                    .deviation = c.initializer_range};
  for (const std::string& token : tokens) patches.tokens.push_back(base + ".embeddings." + token);
  if (patches.patches() < 1)
    throw base::ConfigError("model.patch_size is larger than model.image_size; lower it");
  const Norm norm{.eps = c.layer_norm_eps};
  const Positions positions{.fixed = patches.positions()};
  const BlockSpec block{
      .hidden = c.hidden_size,
      .heads = c.num_attention_heads,
      .inner = c.intermediate_size,
      .self = {"attention.attention.query", "attention.attention.key", "attention.attention.value",
               "attention.output.dense", "layernorm_before"},
      .mlp = {.in = "intermediate.dense", .out = "output.dense", .norm = "layernorm_after"},
      .norm = norm,
      .norm_first = true,
      .qkv_bias = c.qkv_bias,
      .activation = c.hidden_act,
      .dropout = c.hidden_dropout_prob,
      .attention_dropout = c.attention_probs_dropout_prob,
      .mask = "",
      .deviations = Deviations::all(c.initializer_range),
      .positions = positions};
  HeadSpec head{.kind = kind_of(tree, base),
                .hidden = c.hidden_size,
                .norm = base + ".layernorm",
                .norm_kind = norm,
                .deviation = c.initializer_range,
                .problem = tree.value("problem_type", std::string()),
                .positions = positions};
  if (head.kind == HeadKind::embedding)
    head.vector = vector_of(tree);
  else
    head.rows = {.out = "classifier", .labels = labels_of(tree)};

  nn::ModelDef def;
  check_heads(c.num_attention_heads, tp, "num_attention_heads");
  add_rules(block, def.policy);
  def.layers.push_back(patch_link(patches));
  for (int64_t i = 0; i < c.num_hidden_layers; ++i)
    def.layers.push_back(block_link(block, fmt::format("{}.encoder.layer.{}", base, i)));
  add_head(head, def);
  return def;
}

base::Json resolve(const base::Json& tree, const std::string& base, const std::string& class_name) {
  base::Json out;
  read(tree, base, &out);
  for (const auto& [key, otherwise] : {std::pair{"image_size", 224}, {"patch_size", 16}})
    if (!out.contains(key)) out[key] = otherwise;
  write_head(out, class_name, kind_of(tree, base), labels_of(tree));
  return out;
}

}  // namespace

Family vit_family() {
  return {[](const base::Json& tree, int tp) { return make(tree, tp, "vit", {"cls_token"}); },
          [](const base::Json& tree) { return resolve(tree, "vit", "ViT"); },
          {.architecture = "ViTForImageClassification",
           .heads = "images, embedding",
           .tensor = "divides num_attention_heads",
           .tokenizer = ""}};
}

Family deit_family() {
  return {[](const base::Json& tree, int tp) {
            return make(tree, tp, "deit", {"cls_token", "distillation_token"});
          },
          [](const base::Json& tree) { return resolve(tree, "deit", "DeiT"); },
          {.architecture = "DeiTForImageClassification",
           .heads = "images, embedding",
           .tensor = "divides num_attention_heads",
           .tokenizer = ""}};
}

}  // namespace trireme::models
