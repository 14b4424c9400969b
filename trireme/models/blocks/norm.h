#pragma once
// Norm: the normalisation of a family as data; AnyNorm: a layer's part that is one.

#include <variant>

#include "trireme/nn/layers.h"

namespace trireme::models {

/// With a mean and a bias, or of the root mean square alone, whose weight then counts from `offset` on.
struct Norm {
  double eps = 1e-5;
  bool rms = false;
  double offset = 0;
};

class AnyNorm {
 public:
  AnyNorm(const nn::Builder& b, int64_t features, const Norm& norm)
      : norm_(norm.rms ? decltype(norm_)(nn::RmsNorm(b, features, norm.eps, norm.offset))
                       : nn::LayerNorm(b, features, norm.eps)) {}
  at::Tensor forward(const at::Tensor& x, const nn::Context& context) const {
    return std::visit([&](const auto& norm) { return norm.forward(x, context); }, norm_);
  }

 private:
  std::variant<nn::LayerNorm, nn::RmsNorm> norm_;
};

}  // namespace trireme::models
