#include "trireme/nn/rotary.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <numbers>

#include "trireme/base/error.h"
#include "trireme/kernels/rotary.h"

namespace trireme::nn {
namespace {

at::Tensor exponents(int64_t size) { return at::arange(0, size, 2, at::kFloat) / static_cast<double>(size); }

at::Tensor inverse_powers(double base, int64_t size) { return at::pow(base, exponents(size)).reciprocal_(); }

// Long waves are stretched, short ones kept, those between mixed (Llama 3.1).
at::Tensor llama3(const RotaryOptions& o) {
  const auto length = static_cast<double>(o.original_max_positions);
  at::Tensor plain = inverse_powers(o.theta, o.size), wave = 2 * std::numbers::pi / plain;
  at::Tensor stretched = plain / o.factor;
  at::Tensor share = (length / wave - o.low_freq_factor) / (o.high_freq_factor - o.low_freq_factor);
  at::Tensor mixed = (1 - share) * plain / o.factor + share * plain;
  at::Tensor out = at::where(wave.gt(length / o.low_freq_factor), stretched, plain);
  at::Tensor between = wave.ge(length / o.high_freq_factor).logical_and(wave.le(length / o.low_freq_factor));
  return at::where(between, mixed, out);
}

// Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models", 2023.
at::Tensor yarn(const RotaryOptions& o) {
  const auto size = static_cast<double>(o.size);
  auto dimension_of = [&](double rotations) {
    return size * std::log(static_cast<double>(o.original_max_positions) / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(o.theta));
  };
  double low = dimension_of(o.beta_fast), high = dimension_of(o.beta_slow);
  if (o.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, size - 1);
  if (low == high) high += 0.001;
  at::Tensor powers = at::pow(o.theta, exponents(o.size));
  at::Tensor kept = 1 - ((at::arange(o.size / 2, at::kFloat) - low) / (high - low)).clamp(0, 1);
  return (o.factor * powers).reciprocal() * (1 - kept) + powers.reciprocal() * kept;
}

double yarn_scale(const RotaryOptions& o) {
  if (o.attention_factor > 0) return o.attention_factor;
  auto of = [&](double mscale) { return o.factor <= 1 ? 1.0 : 0.1 * mscale * std::log(o.factor) + 1; };
  return o.mscale > 0 && o.mscale_all_dim > 0 ? of(o.mscale) / of(o.mscale_all_dim) : of(1);
}

double longrope_scale(const RotaryOptions& o) {
  if (o.attention_factor > 0) return o.attention_factor;
  return o.factor <= 1 ? 1.0 : std::sqrt(1 + std::log(o.factor) / std::log(static_cast<double>(o.original_max_positions)));
}

// (a, b) of each pair of features becomes (a cos - b sin, b cos + a sin).
at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool interleaved, bool back) {
  const int64_t size = 2 * cos.size(-1), rest = x.size(-1) - size;
  at::Tensor out = at::empty(x.sizes(), x.options());
  auto pairs = [&](const at::Tensor& t) -> std::pair<at::Tensor, at::Tensor> {
    if (interleaved) return {t.slice(-1, 0, size, 2), t.slice(-1, 1, size, 2)};
    return {t.narrow(-1, 0, size / 2), t.narrow(-1, size / 2, size / 2)};
  };
  auto [a, b] = pairs(x);
  auto [left, right] = pairs(out);
  const double sign = back ? -1 : 1;
  at::mul_out(left, a, cos).addcmul_(b, sin, -sign);
  at::mul_out(right, b, cos).addcmul_(a, sin, sign);
  if (rest > 0) out.narrow(-1, size, rest).copy_(x.narrow(-1, size, rest));
  return out;
}

using Rotation = at::Tensor (*)(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool interleaved,
                                bool back);
Rotation rotation(bool fuse) { return fuse ? kernels::rotate : rotate; }

struct Rotate : torch::autograd::Function<Rotate> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, const at::Tensor& cos,
                            const at::Tensor& sin, bool interleaved, bool fuse) {
    ctx->save_for_backward({cos, sin});
    ctx->saved_data["interleaved"] = interleaved;
    ctx->saved_data["fuse"] = fuse;
    return rotation(fuse)(x, cos, sin, interleaved, false);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    at::NoGradGuard no_grad;
    const Rotation turn = rotation(ctx->saved_data["fuse"].toBool());
    return {turn(grads[0], saved[0], saved[1], ctx->saved_data["interleaved"].toBool(), true), {}, {}, {}, {}};
  }
};

}  // namespace

Rotary::Rotary(RotaryOptions options) : options_(std::move(options)) {
  const RotaryOptions& o = options_;
  if (o.size < 2 || o.size % 2 != 0)
    throw base::ConfigError(fmt::format("rotary positions turn pairs of features, but {} of a head are to be turned", o.size));
  if (o.type == "yarn") scale_ = yarn_scale(o);
  if (o.type == "longrope") scale_ = longrope_scale(o);
  if (o.type == "default" || o.type == "dynamic") frequencies_ = inverse_powers(o.theta, o.size);
  else if (o.type == "linear") frequencies_ = inverse_powers(o.theta, o.size) / o.factor;
  else if (o.type == "llama3") frequencies_ = llama3(o);
  else if (o.type == "yarn") frequencies_ = yarn(o);
  else if (o.type == "longrope") frequencies_ = frequencies(0);
  else
    throw base::ConfigError(fmt::format(
        "rope type '{}' is not known; use one of: default, linear, dynamic, llama3, yarn, longrope", o.type));
}

at::Tensor Rotary::frequencies(int64_t length) const {
  const RotaryOptions& o = options_;
  if (o.type == "dynamic" && length > o.max_positions) {
    const auto size = static_cast<double>(o.size);
    const double stretch = o.factor * static_cast<double>(length) / static_cast<double>(o.max_positions) - (o.factor - 1);
    return inverse_powers(o.theta * std::pow(stretch, size / (size - 2)), o.size);
  }
  if (o.type == "longrope" && (length == 0 || length > o.original_max_positions)) {
    const std::vector<double>& factors = length == 0 ? o.short_factor : o.long_factor;
    return (at::tensor(factors, at::kFloat) * at::pow(o.theta, exponents(o.size))).reciprocal();
  }
  return frequencies_;
}

at::Tensor Rotary::apply(const at::Tensor& x, const Context& context) const {
  const int64_t first = context.batch.position;
  const int64_t positions = x.size(-2);
  if (table_.first != first || table_.positions != positions || table_.cos.scalar_type() != x.scalar_type() ||
      table_.cos.device() != x.device()) {
    at::NoGradGuard no_grad;
    at::Tensor places = at::arange(first, first + positions, at::kLong).to(at::kFloat);
    at::Tensor angles = places.unsqueeze(1) * frequencies(first + positions);
    table_ = {.first = first,
              .positions = positions,
              .cos = (angles.cos() * scale_).to(x.options()),
              .sin = (angles.sin() * scale_).to(x.options())};
  }
  return Rotate::apply(x, table_.cos, table_.sin, options_.interleaved, context.fuse);
}

}  // namespace trireme::nn
