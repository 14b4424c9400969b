// ResMLP (Touvron et al., 2021): a linear layer over positions in place of attention, affine maps
// in place of norms. Names are those of its authors' files. The stream stays whole on every tensor
// rank, also with sequence_parallel.
#include <ATen/ATen.h>

#include "trireme/models/blocks/encoder.h"
#include "trireme/models/blocks/sites.h"
#include "trireme/models/blocks/vision.h"
#include "trireme/models/family.h"

namespace trireme::models {
namespace {

using layout::Init;
using layout::Sbp;
using nn::Builder;
using nn::Context;
using nn::State;

struct ResMlpConfig {
  int64_t num_channels = 3, embed_dim = 384, depth = 12;
  double mlp_ratio = 4, init_scale = 1e-4, drop_path_rate = 0, initializer_range = 0.02;
  std::string hidden_act = "gelu";
};

/// `resolved`: the tree with every key as it came to be.
ResMlpConfig read(const base::Json& tree, base::Json* resolved = nullptr) {
  ResMlpConfig c;
  ConfigReader get(tree, "resmlp");
  get("num_channels", c.num_channels);
  get("embed_dim", c.embed_dim);
  get("depth", c.depth);
  get("mlp_ratio", c.mlp_ratio, 0.01, 1000);
  get("init_scale", c.init_scale, 0, 10);
  get("drop_path_rate", c.drop_path_rate, 0, 0.999);
  get("initializer_range", c.initializer_range, 0, 10);
  get("hidden_act", c.hidden_act);
  get.ignore({"head", "num_labels", "image_size", "patch_size"});
  get.finish();
  if (resolved) *resolved = get.resolved();
  nn::find_activation(c.hidden_act);
  return c;
}

/// x * alpha + beta, by feature.
class Affine {
 public:
  Affine(const Builder& b, int64_t features)
      : alpha_(b.param("alpha", {features}, Init::ones(), Sbp::invariant())),
        beta_(b.param("beta", {features}, Init::zeros(), Sbp::invariant())) {}
  at::Tensor forward(const at::Tensor& x, const Context& context) const {
    return x * nn::use(alpha_, context) + nn::use(beta_, context);
  }

 private:
  nn::Param* alpha_;
  nn::Param* beta_;
};

class Block : public nn::Layer {
 public:
  Block(const Builder& b, const ResMlpConfig& c, int64_t positions)
      : config_(c),
        layer_(b.layer_index()),
        positions_(positions),
        activation_(nn::find_activation(c.hidden_act)),
        norm1_(b / "norm1", c.embed_dim),
        norm2_(b / "norm2", c.embed_dim),
        mixing_(b / "attn", positions, positions, {.init = Init::normal(c.initializer_range)}),
        in_(b / "mlp.fc1", c.embed_dim, inner(), {.init = Init::normal(c.initializer_range)}),
        out_(b / "mlp.fc2", inner(), c.embed_dim, {.init = Init::normal(c.initializer_range)}),
        gamma1_(b.param("gamma_1", {c.embed_dim}, Init::constant(c.init_scale), Sbp::invariant())),
        gamma2_(b.param("gamma_2", {c.embed_dim}, Init::constant(c.init_scale), Sbp::invariant())) {
  }

  State forward(State in, const Context& given) override {
    const Context context = given.over(positions_);
    at::Tensor x = in.at("hidden");
    const at::Tensor mixed =
        mixing_.forward(norm1_.forward(x, context).transpose(1, 2), context).transpose(1, 2);
    x = x + drop_path(mixed * nn::use(gamma1_, context), config_.drop_path_rate, layer_, kPath,
                      context);
    const at::Tensor inner = activation_(in_.forward(norm2_.forward(x, context), context));
    return {{"hidden", x + drop_path(out_.forward(inner, context) * nn::use(gamma2_, context),
                                     config_.drop_path_rate, layer_, kMlpPath, context)}};
  }

  double flops(int64_t) const override {
    const auto places = static_cast<double>(positions_),
               hidden = static_cast<double>(config_.embed_dim);
    return 2 * places * hidden * (places + 2 * static_cast<double>(inner()));
  }

 private:
  int64_t inner() const {
    return static_cast<int64_t>(config_.mlp_ratio * static_cast<double>(config_.embed_dim));
  }

  ResMlpConfig config_;
  int layer_;
  int64_t positions_;
  nn::Activation activation_;
  Affine norm1_, norm2_;
  nn::Linear mixing_, in_, out_;
  nn::Param* gamma1_;
  nn::Param* gamma2_;
};

class Last : public nn::Layer {
 public:
  Last(const Builder& b, int64_t features) : norm_(b / "norm", features) {}
  State forward(State in, const Context& context) override {
    return {{"hidden", norm_.forward(in.at("hidden"), context)}};
  }

 private:
  Affine norm_;
};

nn::ModelDef make(const base::Json& tree, int) {
  const ResMlpConfig c = read(tree);
  head_of(tree, "resmlp", {HeadKind::image_classification}, HeadKind::image_classification);
  const auto [image, patch] = read_sizes(tree);
  const PatchSpec patches{.projection = "patch_embed.proj",
                          .channels = c.num_channels,
                          .height = image.first,
                          .width = image.second,
                          .patch_height = patch.first,
                          .patch_width = patch.second,
                          .hidden = c.embed_dim,
                          .deviation = c.initializer_range};
  nn::ModelDef def;
  def.policy = {{"*.mlp.fc1", nn::Style::column}, {"*.mlp.fc2", nn::Style::row}};
  def.layers.push_back(patch_link(patches));
  for (const std::string& name : numbered("blocks", c.depth)) {
    def.layers.push_back({name, true, [c, name, positions = patches.positions()](Builder& b) {
                            return std::make_unique<Block>(b / name, c, positions);
                          }});
  }
  def.layers.push_back(
      {"norm", false, [c](Builder& b) { return std::make_unique<Last>(b, c.embed_dim); }});
  HeadSpec head{.kind = HeadKind::image_classification,
                .hidden = c.embed_dim,
                .deviation = c.initializer_range,
                .problem = tree.value("problem_type", std::string()),
                .positions = {.fixed = patches.positions()}};
  add_scores(head, {.classes = {.pool = RowPool::mean, .out = "head"}}, labels_of(tree, 1000), tree);
  add_head(head, def);
  keep_whole(def);
  return def;
}

base::Json resolve(const base::Json& tree) {
  base::Json out;
  read(tree, &out);
  write_sizes(out);
  write_head(out, "ResMLP", HeadKind::image_classification, labels_of(tree, 1000));
  return out;
}

}  // namespace

Family resmlp_family() {
  return {make,
          resolve,
          {.architecture = "ResMLPForImageClassification",
           .heads = {HeadKind::image_classification},
           .tensor = "any",
           .sequence = "stream stays whole",
           .tokenizer = ""}};
}

}  // namespace trireme::models
