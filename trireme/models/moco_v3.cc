// MoCo v3 (Chen, Xie and He, 2021): two views of each image go through an encoder and through its
// moving average; what the first predicts of one view is to be nearest to what the second makes of
// the other. A ViT takes the encoder over
// (`pretrained` with `family: vit`).
//
// Everything below the heads is a pair: a layer and the same layer of the moving average, whose
// stream travels beside the first's and carries no gradient. The loss is no sum over images: it
// asks which of the images of a micro-batch, on all data ranks together, a view is of, and the
// heads' norms take statistics of the same rows. In evaluation the rows are those of one data rank.
#include <ATen/ATen.h>

#include <cmath>
#include <numbers>

#include "trireme/base/error.h"
#include "trireme/dist/redistribute.h"
#include "trireme/models/blocks/vit_like.h"
#include "trireme/nn/batch_norm.h"

namespace trireme::models {
namespace {

using layout::Init;
using nn::Batch;
using nn::Builder;
using nn::Context;
using nn::State;

constexpr std::string_view kAverage = "momentum";
constexpr int64_t kViews = 2;

struct MocoConfig {
  VitConfig encoder = {};
  int64_t projection_dim = 256, mlp_dim = 4096;
  double temperature = 0.2, momentum = 0.99;
  std::string momentum_schedule = "cosine";

  PatchSpec patches() const {
    PatchSpec spec = vit_patches(encoder, "vit");
    spec.fixed_places = true;
    return spec;
  }
};

/// `resolved`: the tree with every key as it came to be.
MocoConfig read(const base::Json& tree, base::Json* resolved) {
  MocoConfig c;
  ConfigReader get(tree, "moco_v3");
  visit(get, c.encoder);
  get("projection_dim", c.projection_dim);
  get("mlp_dim", c.mlp_dim);
  get("temperature", c.temperature, 1e-6, 1e6);
  get("momentum", c.momentum, 0, 1);
  get("momentum_schedule", c.momentum_schedule);
  get.only("head", "pretraining");
  get.finish();
  if (c.momentum_schedule != "cosine" && c.momentum_schedule != "constant")
    throw base::ConfigError(fmt::format(
        "model.momentum_schedule is {}; expected cosine or constant", c.momentum_schedule));
  c.encoder.sizes = read_sizes(tree);
  if (resolved) {
    *resolved = get.resolved("MoCoV3ForPreTraining");
    resolved->erase("head");
    write_sizes(*resolved);
  }
  check(c.encoder);
  if (c.encoder.hidden_size % 4 != 0)
    throw base::ConfigError(
        fmt::format("model.hidden_size {}: places are sines and cosines of columns and rows; give "
                    "a multiple of 4",
                    c.encoder.hidden_size));
  return c;
}

/// A layer and that of its moving average, each on tensors of its own.
class Pair : public nn::Layer {
 public:
  Pair(std::unique_ptr<nn::Layer> own, std::unique_ptr<nn::Layer> average)
      : own_(std::move(own)), average_(std::move(average)) {}

  State forward(State in, const Context& context) override {
    State mine, averaged;
    for (auto& [name, tensor] : in.tensors())
      name.starts_with(prefix()) ? averaged.set(name.substr(prefix().size()), tensor)
                                 : mine.set(name, tensor);
    State out = own_->forward(std::move(mine), context);
    at::NoGradGuard no_grad;
    const State theirs = average_->forward(std::move(averaged), context);
    for (const auto& [name, tensor] : theirs.tensors()) out.set(prefix() + name, tensor);
    return out;
  }

  nn::StateSpec describe(const nn::StateSpec& in, const nn::BatchShape& shape) const override {
    nn::StateSpec mine, averaged;
    for (nn::TensorSpec tensor : in) {
      const bool of_average = tensor.name.starts_with(prefix());
      if (of_average) tensor.name.erase(0, prefix().size());
      (of_average ? averaged : mine).push_back(tensor);
    }
    nn::StateSpec out = own_->describe(mine, shape);
    for (nn::TensorSpec tensor : average_->describe(averaged, shape)) {
      tensor.name.insert(0, prefix());
      tensor.requires_grad = false;
      out.push_back(std::move(tensor));
    }
    return out;
  }

  double flops(int64_t seq) const override { return own_->flops(seq) + average_->flops(seq); }

 private:
  static const std::string& prefix() {
    static const std::string text = std::string(kAverage) + ".";
    return text;
  }
  std::unique_ptr<nn::Layer> own_, average_;
};

nn::LayerDef paired(nn::LayerDef link) {
  link.make = [make = link.make](Builder& b) {
    Builder average = b.average(std::string(kAverage));
    auto own = make(b);
    return std::make_unique<Pair>(std::move(own), make(average));
  };
  return link;
}

/// Linear layers without biases, each with a norm over the batch, the last of which has no weights;
/// between them relu.
class Mlp {
 public:
  Mlp(const Builder& b, const MocoConfig& c, int64_t in, int layers) {
    for (int i = 0; i < layers; ++i) {
      const bool last = i + 1 == layers;
      const int64_t out = last ? c.projection_dim : c.mlp_dim;
      const Builder own = b / std::to_string(i);
      dense_.emplace_back(
          own / "dense", in, out,
          nn::Linear::Options{.init = Init::normal(c.encoder.initializer_range), .bias = false});
      norms_.emplace_back(own / "norm", out, nn::BatchNorm::Options{.affine = !last});
      in = out;
    }
  }
  /// x [images, views, features].
  at::Tensor forward(at::Tensor x, const Context& context) const {
    for (size_t i = 0; i < dense_.size(); ++i) {
      x = norms_[i].forward(dense_[i].forward(x, context), context);
      if (i + 1 < dense_.size()) x = at::relu(x);
    }
    return x;
  }

 private:
  std::vector<nn::Linear> dense_;
  std::vector<nn::BatchNorm> norms_;
};

/// Where the streams meet: "logits" [images, views, images of all data ranks], and each image's own
/// place among these.
class Contrast : public nn::Layer {
 public:
  Contrast(const Builder& b, const MocoConfig& c)
      : builder_(b),
        config_(c),
        own_(b.whole(), c),
        average_(b.whole().average(std::string(kAverage)), c),
        predictor_(b.whole() / "predictor", c, c.projection_dim, 2) {}

  State forward(State in, const Context& given) override {
    const Context context = given.over(config_.patches().positions());
    const at::Tensor query = direction(
        predictor_.forward(own_.forward(first(in.at("hidden"), context), context), context));
    const bool together = context.mode == nn::Mode::train;
    const comm::Comm& dp = builder_.dp();
    at::Tensor keys;
    {
      at::NoGradGuard no_grad;
      keys = direction(
          average_.forward(first(in.at(fmt::format("{}.hidden", kAverage)), context), context));
      if (together) keys = dist::all_gather(keys, dp, 0, keys.size(0) * dp.size());
    }
    std::vector<at::Tensor> scores;
    for (int64_t view = 0; view < kViews; ++view)
      scores.push_back(at::mm(query.select(1, view), keys.select(1, kViews - 1 - view).t()) /
                       config_.temperature);
    const int64_t images = query.size(0), before = together ? images * dp.rank() : 0;
    return {{"logits", at::stack(scores, 1)},
            {"places", at::arange(before, before + images, at::kLong)}};
  }

  nn::StateSpec describe(const nn::StateSpec&, const nn::BatchShape& shape) const override {
    const int64_t images = shape.rows / kViews;
    return {
        {"logits", {images, kViews, images * builder_.dp().size()}, builder_.options().dtype, true},
        {"places", {images}, base::DType::i64, false}};
  }

  double flops(int64_t) const override {
    const auto hidden = static_cast<double>(config_.encoder.hidden_size),
               wide = static_cast<double>(config_.mlp_dim),
               out = static_cast<double>(config_.projection_dim);
    return 2 * (2 * (hidden * wide + wide * wide + wide * out) + 2 * out * wide);
  }

 private:
  /// Norm and projector on an image's first token.
  struct Projector {
    Projector(const Builder& b, const MocoConfig& c)
        : norm(b / "vit.layernorm", c.encoder.hidden_size, c.encoder.layer_norm_eps),
          mlp(b / "projector", c, c.encoder.hidden_size, 3) {}
    at::Tensor forward(const at::Tensor& x, const Context& context) const {
      return mlp.forward(norm.forward(x, context), context);
    }
    nn::LayerNorm norm;
    Mlp mlp;
  };

  /// [rows, positions, hidden] -> [images, views, hidden].
  at::Tensor first(const at::Tensor& x, const Context& context) const {
    if (context.batch.choices != kViews)
      throw base::ConfigError(
          fmt::format("a batch of moco_v3 holds two views of each image, not {}: give the data the "
                      "option views: 2",
                      context.batch.choices));
    return whole_stream(builder_, x, context).select(1, 0).unflatten(0, {-1, kViews});
  }
  static at::Tensor direction(const at::Tensor& x) {
    return x / x.norm(2, {-1}, true).clamp_min(1e-12);
  }

  Builder builder_;
  MocoConfig config_;
  Projector own_, average_;
  Mlp predictor_;
};

nn::ModelDef make(const MocoConfig& c, int tp) {
  nn::ModelDef def;
  def.generates = false;
  def.trains_on = {{"pixel_values", 4}};
  def.whole_batches = true;
  def.average_keeps = [c](double over) {
    if (c.momentum_schedule == "constant") return c.momentum;
    return 1 - (1 - c.momentum) * 0.5 * (1 + std::cos(std::numbers::pi * over));
  };
  check_heads(c.encoder.num_attention_heads, tp, "num_attention_heads");
  const PatchSpec patches = c.patches();
  const BlockSpec block = vit_block(c.encoder, {.fixed = patches.positions()});
  add_rules(block, def.policy);
  def.layers.push_back(paired(patch_link(patches)));
  for (const std::string& name : vit_blocks(c.encoder, "vit"))
    def.layers.push_back(paired(block_link(block, name)));
  def.layers.push_back(
      {"contrast", false, [c](Builder& b) { return std::make_unique<Contrast>(b, c); }});
  // The authors scale each cross entropy by twice the temperature.
  def.loss = [scale = 2 * c.temperature](const State& out, const Batch&, const comm::Comm&) {
    const at::Tensor scores = out.at("logits").to(at::kDouble).flatten(0, 1);
    return at::cross_entropy_loss(scores, out.at("places").repeat_interleave(kViews), {},
                                  at::Reduction::Sum) *
           scale;
  };
  def.loss_weight = [](const Batch& batch) { return batch.rows / batch.choices; };
  return def;
}

}  // namespace

Family moco_v3_family() {
  return family_of<MocoConfig>(read, make,
                               {.architecture = "MoCoV3ForPreTraining",
                                .task = "views of one image",
                                .tensor = "divides num_attention_heads",
                                .tokenizer = ""});
}

}  // namespace trireme::models
