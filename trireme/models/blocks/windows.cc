#include "trireme/models/blocks/windows.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/models/blocks/encoder.h"
#include "trireme/models/blocks/sites.h"
#include "trireme/models/blocks/vision.h"
#include "trireme/models/family.h"
#include "trireme/nn/attention.h"

namespace trireme::models {
namespace {

using layout::Init;
using nn::Builder;
using nn::Context;
using nn::State;

constexpr double kMergingEps = 1e-5;     // of its norm; configurations do not speak of it
constexpr int64_t kDistanceWidth = 512;  // of the network that makes the second version's biases

/// [rows, height, width, c] -> [rows * windows, window * window, c], and back.
at::Tensor to_windows(const at::Tensor& x, int64_t w) {
  return x.view({x.size(0), x.size(1) / w, w, x.size(2) / w, w, x.size(3)})
      .transpose(2, 3)
      .reshape({-1, w * w, x.size(3)});
}
at::Tensor from_windows(const at::Tensor& x, int64_t w, int64_t height, int64_t width) {
  return x.view({-1, height / w, width / w, w, w, x.size(2)})
      .transpose(2, 3)
      .reshape({-1, height, width, x.size(2)});
}

/// Row of the bias table for each pair of a window's positions, [window^2, window^2].
at::Tensor table_rows(int64_t w) {
  const at::Tensor at = at::arange(w * w, at::kLong), y = at::floor_divide(at, w),
                   x = at.remainder(w);
  return (y.unsqueeze(1) - y.unsqueeze(0) + w - 1) * (2 * w - 1) +
         (x.unsqueeze(1) - x.unsqueeze(0) + w - 1);
}

/// What keeps apart positions that a shift has brought into one window: -100 between them,
/// [windows, 1, n, n].
at::Tensor shift_mask(const WindowSpec& spec, at::ScalarType type) {
  auto region = [&](int64_t size) {
    const at::Tensor at = at::arange(size, at::kLong);
    return at.ge(size - spec.window).to(at::kLong) + at.ge(size - spec.shift).to(at::kLong);
  };
  const at::Tensor regions = (region(spec.padded(spec.height)) * 3).unsqueeze(1) +
                             region(spec.padded(spec.width)).unsqueeze(0);
  const at::Tensor own = to_windows(regions.unsqueeze(0).unsqueeze(-1), spec.window).squeeze(-1);
  return own.unsqueeze(1).ne(own.unsqueeze(2)).to(type).mul_(-100).unsqueeze(1);
}

/// The place of each row of the bias table, as the second version's network takes it: [(2w - 1)^2,
/// 2], from -8 to 8 on a scale that shrinks what is far.
at::Tensor log_distances(const WindowSpec& spec, at::ScalarType type) {
  const int64_t w = spec.window, reach = spec.pretrained_window > 0 ? spec.pretrained_window : w;
  const at::Tensor one = at::arange(-(w - 1), w, at::kFloat) /
                         static_cast<double>(std::max<int64_t>(reach - 1, 1)) * 8;
  const at::Tensor scaled = one.sign() * (one.abs() + 1).log2() / std::log2(8.0);
  const int64_t n = 2 * w - 1;
  return at::stack({scaled.unsqueeze(1).expand({n, n}), scaled.unsqueeze(0).expand({n, n})}, -1)
      .view({n * n, 2})
      .to(type);
}

class Block : public nn::Layer {
 public:
  Block(const Builder& b, const WindowSpec& spec)
      : spec_(spec),
        layer_(b.layer_index()),
        tp_rank_(b.tp().rank()),
        activation_(nn::find_activation(spec.activation)),
        before_(b / "layernorm_before", spec.hidden, spec.eps),
        after_(b / "layernorm_after", spec.hidden, spec.eps),
        query_(b / "attention.self.query", spec.hidden, spec.hidden,
               linear(spec.qkv_bias, spec.hidden / spec.heads)),
        key_(b / "attention.self.key", spec.hidden, spec.hidden,
             linear(spec.qkv_bias && !spec.v2, spec.hidden / spec.heads)),
        value_(b / "attention.self.value", spec.hidden, spec.hidden,
               linear(spec.qkv_bias, spec.hidden / spec.heads)),
        out_(b / "attention.output.dense", spec.hidden, spec.hidden,
             linear(true, spec.hidden / spec.heads)),
        mlp_in_(b / "intermediate.dense", spec.hidden, inner(), linear(true, 1)),
        mlp_out_(b / "output.dense", inner(), spec.hidden, linear(true, 1)) {
    const Builder a = b / "attention.self";
    if (!spec.v2) {
      const int64_t rows = (2 * spec.window - 1) * (2 * spec.window - 1);
      table_ = a.param("relative_position_bias_table", {rows, spec.heads}, Init::zeros(),
                       layout::Sbp::split(1));
      return;
    }
    const Init init = Init::normal(spec.deviation);
    scale_ = a.param("logit_scale", {spec.heads, 1, 1}, Init::constant(std::log(10.0)),
                     layout::Sbp::split(0));
    // Every rank runs the first layer for its own heads, so its gradients are parts.
    network_ = {a.param("continuous_position_bias_mlp.0.weight", {kDistanceWidth, 2}, init,
                        layout::Sbp::replicated()),
                a.param("continuous_position_bias_mlp.0.bias", {kDistanceWidth}, Init::zeros(),
                        layout::Sbp::replicated()),
                a.param("continuous_position_bias_mlp.2.weight", {spec.heads, kDistanceWidth}, init,
                        layout::Sbp::split(0))};
  }

  State forward(State in, const Context& given) override {
    const Context context = given.over(spec_.height * spec_.width);
    const at::Tensor x = in.at("hidden");
    if (spec_.v2) {
      const at::Tensor y =
          x + drop(before_.forward(attend(x, context), context), kPath, context);
      return {
          {"hidden", y + drop(after_.forward(mlp(y, context), context), kMlpPath, context)}};
    }
    const at::Tensor y =
        x + drop(attend(before_.forward(x, context), context), kPath, context);
    return {{"hidden", y + mlp(after_.forward(y, context), context)}};
  }

  double flops(int64_t) const override {
    const auto places = static_cast<double>(spec_.height * spec_.width),
               hidden = static_cast<double>(spec_.hidden);
    return 2 * places *
           (hidden * (4 * hidden + 2 * static_cast<double>(inner())) +
            2.0 * static_cast<double>(spec_.window * spec_.window) * hidden);
  }

 private:
  int64_t inner() const {
    return static_cast<int64_t>(spec_.mlp_ratio * static_cast<double>(spec_.hidden));
  }
  nn::Linear::Options linear(bool bias, int64_t granularity) const {
    return {
        .init = Init::normal(spec_.deviation), .bias = bias, .granularity = granularity};
  }

  at::Tensor mlp(const at::Tensor& x, const Context& context) const {
    const at::Tensor inner = activation_(mlp_in_.forward(x, context));
    return nn::dropout(mlp_out_.forward(inner, context), spec_.dropout, layer_,
                       kMlpOutput, 0, context);
  }

  /// The bias of each pair of a window's positions, [1, local heads, window^2, window^2].
  at::Tensor bias_of_distance(const Context& context) const {
    at::Tensor table;
    if (spec_.v2) {
      const at::Tensor weight = nn::use(network_[0], context),
                       inner = at::linear(log_distances(spec_, weight.scalar_type()).to(weight.device()), weight,
                                          nn::use(network_[1], context));
      table = at::linear(at::relu(inner), nn::use(network_[2], context)).sigmoid() * 16;
    } else {
      table = nn::use(table_, context);
    }
    return at::embedding(table, table_rows(spec_.window).to(table.device())).permute({2, 0, 1}).unsqueeze(0);
  }

  at::Tensor attend(at::Tensor x, const Context& given) const {
    const int64_t rows = x.size(0), w = spec_.window, height = spec_.padded(spec_.height),
                  width = spec_.padded(spec_.width);
    x = x.view({rows, spec_.height, spec_.width, spec_.hidden});
    x = at::constant_pad_nd(x, {0, 0, 0, width - spec_.width, 0, height - spec_.height});
    if (spec_.shift > 0) x = x.roll({-spec_.shift, -spec_.shift}, {1, 2});
    x = to_windows(x.contiguous(), w);
    // A window is a row of its own, also for what is drawn.
    nn::Batch batch = given.batch;
    batch.samples =
        (batch.samples.unsqueeze(1) * spec_.windows() + at::arange(spec_.windows(), batch.samples.options()))
            .flatten();
    const Context context{.batch = batch,
                          .mode = given.mode,
                          .random = given.random,
                          .anchor = given.anchor,
                          .weight_queue = given.weight_queue,
                          .fuse = given.fuse,
                          .recompute_attention = given.recompute_attention,
                          .seq = w * w};
    auto heads = [&](const nn::Linear& linear) {
      return nn::split_heads(linear.forward(x, context), spec_.hidden / spec_.heads);
    };
    at::Tensor q = heads(query_), k = heads(key_), v = heads(value_);
    double scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
    if (spec_.v2) {
      auto direction = [](const at::Tensor& t) {
        return t / t.norm(2, {-1}, true).clamp_min(1e-12);
      };
      q = direction(q) * nn::use(scale_, context).clamp_max(std::log(100.0)).exp();
      k = direction(k);
      scale = 1;
    }
    at::Tensor bias = bias_of_distance(context);
    // The second version adds it twice.
    if (spec_.shift > 0)
      bias = (bias + shift_mask(spec_, bias.scalar_type()).to(bias.device()) * (spec_.v2 ? 2 : 1))
                 .unsqueeze(0)
                 .expand({rows, -1, -1, -1, -1})
                 .flatten(0, 1);
    const at::Tensor out = nn::attention(q, k, v,
                                         {.scale = scale,
                                          .dropout = spec_.attention_dropout,
                                          .layer = layer_,
                                          .site = kAttentionWeights,
                                          .first_head = q.size(1) * tp_rank_},
                                         {.bias = bias}, context);
    const double dropout =
        spec_.v2 ? spec_.attention_dropout : spec_.dropout;
    x = nn::dropout(out_.forward(nn::merge_heads(out), context), dropout, layer_, kAttentionOutput,
                    0, context);
    x = from_windows(x.contiguous(), w, height, width);
    if (spec_.shift > 0) x = x.roll({spec_.shift, spec_.shift}, {1, 2});
    return x.narrow(1, 0, spec_.height)
        .narrow(2, 0, spec_.width)
        .reshape({rows, spec_.height * spec_.width, spec_.hidden});
  }

  at::Tensor drop(const at::Tensor& x, Site site, const Context& context) const {
    return drop_path(x, spec_.drop_path, layer_, site, context);
  }

  WindowSpec spec_;
  int layer_, tp_rank_;
  nn::Activation activation_;
  nn::LayerNorm before_, after_;
  nn::Linear query_, key_, value_, out_, mlp_in_, mlp_out_;
  nn::Param* table_ = nullptr;
  nn::Param* scale_ = nullptr;
  std::vector<nn::Param*> network_;
};

/// Four neighbours become one position of twice the features; an odd last row or column gets zeros
/// for neighbours.
class Merging : public nn::Layer {
 public:
  Merging(const Builder& b, const WindowSpec& spec)
      : spec_(spec),
        v2_(spec.v2),
        dtype_(b.options().dtype),
        norm_(b / "norm", (spec.v2 ? 2 : 4) * spec.hidden, kMergingEps),
        reduction_(b / "reduction", 4 * spec.hidden, 2 * spec.hidden,
                   {.init = Init::normal(spec.deviation), .bias = false}) {}

  State forward(State in, const Context& context) override {
    at::Tensor x = in.at("hidden").view({-1, spec_.height, spec_.width, spec_.hidden});
    x = at::constant_pad_nd(x, {0, 0, 0, spec_.width % 2, 0, spec_.height % 2});
    std::vector<at::Tensor> parts;
    for (int64_t column : {0, 1})
      for (int64_t row : {0, 1})
        parts.push_back(x.slice(1, row, c10::nullopt, 2).slice(2, column, c10::nullopt, 2));
    x = at::cat(parts, -1).view({x.size(0), -1, 4 * spec_.hidden});
    return {{"hidden", v2_ ? norm_.forward(reduction_.forward(x, context), context)
                           : reduction_.forward(norm_.forward(x, context), context)}};
  }

  nn::StateSpec describe(const nn::StateSpec&, const nn::BatchShape& shape) const override {
    return {{"hidden",
             {shape.rows, (spec_.height + 1) / 2 * ((spec_.width + 1) / 2), 2 * spec_.hidden},
             dtype_,
             true}};
  }

 private:
  WindowSpec spec_;
  bool v2_;
  base::DType dtype_;
  nn::LayerNorm norm_;
  nn::Linear reduction_;
};

}  // namespace

WindowSpec add_stages(const WindowStages& stages, const std::string& prefix, int tp, nn::ModelDef& def) {
  for (const char* name : {"attention.self.query", "attention.self.key", "attention.self.value", "intermediate.dense"})
    def.policy.push_back({std::string("*.") + name, nn::Style::column});
  for (const char* name : {"attention.output.dense", "output.dense"})
    def.policy.push_back({std::string("*.") + name, nn::Style::row});
  WindowSpec spec = stages.first;
  int64_t blocks = 0;
  for (int64_t depth : stages.depths) blocks += depth;
  for (size_t stage = 0, number = 0; stage < stages.depths.size(); ++stage) {
    spec.heads = stages.heads[stage];
    check_heads(spec.heads, tp, "num_heads");
    check_divides("num_heads", spec.heads, "embed_dim (of a stage)", spec.hidden);
    const int64_t smaller = std::min(spec.height, spec.width);
    spec.window = spec.v2 ? std::min(spec.height, stages.window) : stages.window;
    spec.pretrained_window = stages.pretrained_windows[stage];
    if (smaller < spec.window)
      throw base::ConfigError(
          fmt::format("stage {} has {} x {} positions, less than model.window_size {}: lower it, "
                      "or give larger images",
                      stage, spec.height, spec.width, stages.window));
    const std::string base = fmt::format("{}.{}.", prefix, stage);
    for (int64_t i = 0; i < stages.depths[stage]; ++i, ++number) {
      const bool shifts = i % 2 == 1 && (spec.v2 ? spec.height : smaller) > spec.window;
      spec.shift = shifts ? stages.window / 2 : 0;
      spec.drop_path = stages.drop_path * static_cast<double>(number) /
                       static_cast<double>(std::max<int64_t>(blocks - 1, 1));
      const std::string name = fmt::format("{}blocks.{}", base, i);
      def.layers.push_back({name, true, [spec, name](Builder& b) {
                              return std::make_unique<Block>(b / name, spec);
                            }});
    }
    if (stage + 1 == stages.depths.size()) break;
    const std::string name = base + "downsample";
    def.layers.push_back({name, false, [spec, name](Builder& b) {
                            return std::make_unique<Merging>(b / name, spec);
                          }});
    spec.height = (spec.height + 1) / 2, spec.width = (spec.width + 1) / 2, spec.hidden *= 2;
  }
  return spec;
}

}  // namespace trireme::models
