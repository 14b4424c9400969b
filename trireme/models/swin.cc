// Swin (Liu et al., 2021): attention within windows of an image, every other block's shifted by half a window; between
// stages four neighbours become one position. And its second version (Liu et al., 2022).
#include "trireme/base/error.h"
#include "trireme/models/blocks/encoder.h"
#include "trireme/models/blocks/vision.h"
#include "trireme/models/blocks/windows.h"
#include "trireme/models/family.h"

namespace trireme::models {
namespace {

constexpr double kPatchEps = 1e-5;  // of a norm that the configuration does not speak of
constexpr ImageSizes kSizes{.patch = {4, 4}};

struct SwinConfig {
  int64_t num_channels = 3, embed_dim = 96, window_size = 7;
  std::vector<int64_t> depths = {2, 2, 6, 2}, num_heads = {3, 6, 12, 24},
                       pretrained_window_sizes = {};
  double mlp_ratio = 4, hidden_dropout_prob = 0, attention_probs_dropout_prob = 0,
         drop_path_rate = 0.1, initializer_range = 0.02, layer_norm_eps = 1e-5;
  std::string hidden_act = "gelu";
  bool qkv_bias = true, use_absolute_embeddings = false;
};

void visit(ConfigReader& get, SwinConfig& c) {
  get("num_channels", c.num_channels);
  get("embed_dim", c.embed_dim);
  get("window_size", c.window_size, 2);
  get("mlp_ratio", c.mlp_ratio, 0.01, 1000);
  get("hidden_dropout_prob", c.hidden_dropout_prob, 0, 0.999);
  get("attention_probs_dropout_prob", c.attention_probs_dropout_prob, 0, 0.999);
  get("drop_path_rate", c.drop_path_rate, 0, 0.999);
  get("initializer_range", c.initializer_range, 0, 10);
  get("layer_norm_eps", c.layer_norm_eps, 0, 1);
  get("hidden_act", c.hidden_act);
  get("qkv_bias", c.qkv_bias);
  get("use_absolute_embeddings", c.use_absolute_embeddings);
}

/// `resolved`: the tree with every key as it came to be.
SwinConfig read(const base::Json& tree, bool v2, base::Json* resolved = nullptr) {
  SwinConfig c;
  ConfigReader get(tree, v2 ? "swinv2" : "swin");
  visit(get, c);
  get.ignore({"head", "pooling", "normalize", "image_size", "patch_size", "depths",
              "num_heads", "encoder_stride", "hidden_size", "num_layers", "stage_names",
              "out_features", "out_indices", "path_norm"});
  if (v2) get.ignore({"pretrained_window_sizes"});
  get.finish();
  if (resolved) *resolved = get.resolved();
  c.depths = numbers_of(tree, "depths", c.depths);
  c.num_heads = numbers_of(tree, "num_heads", c.num_heads);
  if (v2 && tree.contains("pretrained_window_sizes") && tree["pretrained_window_sizes"].is_array())
    c.pretrained_window_sizes = tree["pretrained_window_sizes"].get<std::vector<int64_t>>();
  c.pretrained_window_sizes.resize(c.depths.size());
  if (c.depths.size() != c.num_heads.size())
    throw base::ConfigError(
        fmt::format("model.depths has {} stages and model.num_heads {}; give as many of both",
                    c.depths.size(), c.num_heads.size()));
  nn::find_activation(c.hidden_act);
  return c;
}

HeadKind kind_of(const base::Json& tree, bool v2) {
  return head_of(tree, v2 ? "swinv2" : "swin",
                 {HeadKind::image_classification, HeadKind::embedding},
                 HeadKind::image_classification);
}

template <bool v2>
nn::ModelDef make(const base::Json& tree, int tp) {
  const SwinConfig c = read(tree, v2);
  const std::string prefix = v2 ? "swinv2." : "swin.";
  const auto [image, patch] = read_sizes(tree, kSizes);
  check_divides({image, patch});
  nn::ModelDef def;
  def.layers.push_back(patch_link(
      {.projection = prefix + "embeddings.patch_embeddings.projection",
       .places = c.use_absolute_embeddings ? prefix + "embeddings.position_embeddings" : "",
       .norm = prefix + "embeddings.norm",
       .norm_kind = {.eps = kPatchEps},
       .norm_before_places = true,
       .channels = c.num_channels,
       .height = image.first,
       .width = image.second,
       .patch_height = patch.first,
       .patch_width = patch.second,
       .hidden = c.embed_dim,
       .dropout = c.hidden_dropout_prob,
       .deviation = c.initializer_range}));
  const WindowSpec last = add_stages({.first = {.height = image.first / patch.first,
                                                .width = image.second / patch.second,
                                                .hidden = c.embed_dim,
                                                .v2 = v2,
                                                .qkv_bias = c.qkv_bias,
                                                .mlp_ratio = c.mlp_ratio,
                                                .dropout = c.hidden_dropout_prob,
                                                .attention_dropout = c.attention_probs_dropout_prob,
                                                .deviation = c.initializer_range,
                                                .eps = c.layer_norm_eps,
                                                .activation = c.hidden_act},
                                      .depths = c.depths,
                                      .heads = c.num_heads,
                                      .pretrained_windows = c.pretrained_window_sizes,
                                      .window = c.window_size,
                                      .drop_path = c.drop_path_rate},
                                     prefix + "encoder.layers", tp, def);
  HeadSpec head{.kind = kind_of(tree, v2),
                .hidden = last.hidden,
                .norm = prefix + "layernorm",
                .norm_kind = {.eps = c.layer_norm_eps},
                .deviation = c.initializer_range,
                .problem = tree.value("problem_type", std::string()),
                .positions = {.fixed = last.height * last.width}};
  add_scores(head, {.classes = {.pool = RowPool::mean, .out = "classifier"}}, labels_of(tree), tree);
  add_head(head, def);
  keep_whole(def);
  return def;
}

template <bool v2>
base::Json resolve(const base::Json& tree) {
  base::Json out;
  const SwinConfig c = read(tree, v2, &out);
  if (v2) out["pretrained_window_sizes"] = c.pretrained_window_sizes;
  out["depths"] = c.depths;
  out["num_heads"] = c.num_heads;
  write_sizes(out, kSizes);
  write_head(out, v2 ? "Swinv2" : "Swin", kind_of(tree, v2), labels_of(tree));
  return out;
}

Support support(const char* architecture) {
  return {.architecture = architecture,
          .heads = {HeadKind::image_classification, HeadKind::embedding},
          .tensor = "divides each of num_heads",
          .sequence = "stream stays whole",
          .tokenizer = ""};
}

}  // namespace

Family swin_family() { return {make<false>, resolve<false>, support("SwinForImageClassification")}; }
Family swinv2_family() { return {make<true>, resolve<true>, support("Swinv2ForImageClassification")}; }

}  // namespace trireme::models
