#include "trireme/optim/optimizers.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cctype>

#include "trireme/base/error.h"

namespace trireme::optim {
namespace {

std::vector<kernels::Piece> pieces_of(std::span<const Segment> segments) {
  std::vector<kernels::Piece> pieces;
  pieces.reserve(segments.size());
  for (const Segment& segment : segments) pieces.push_back(segment.piece());
  return pieces;
}

at::ScalarType type_of(std::span<const Segment> segments) {
  return segments.front().data.scalar_type();
}

class AdamW final : public Optimizer {
 public:
  explicit AdamW(const config::Optim& options) : options_(options) {
    const auto& betas = options.betas;
    if (betas.size() != 2 || !(betas[0] >= 0 && betas[0] < 1) || !(betas[1] >= 0 && betas[1] < 1))
      throw base::ConfigError(fmt::format("optim.betas must be two numbers in [0, 1), given [{}]",
                                          fmt::join(betas, ", ")));
    if (!(options.eps >= 0))
      throw base::ConfigError(fmt::format("optim.eps is {}; it must be 0 or more", options.eps));
  }
  const std::vector<std::string>& state_names() const override { return names_; }
  void step(std::span<const Segment> segments, double lr, int64_t step,
            double grad_scale) const override {
    if (segments.empty()) return;
    kernels::adamw(pieces_of(segments), type_of(segments),
                   {.lr = lr,
                    .beta1 = options_.betas[0],
                    .beta2 = options_.betas[1],
                    .eps = options_.eps,
                    .step = step},
                   grad_scale);
  }

 private:
  config::Optim options_;
  std::vector<std::string> names_ = {"exp_avg", "exp_avg_sq"};
};

class Sgd final : public Optimizer {
 public:
  explicit Sgd(const config::Optim& options) : momentum_(options.momentum) {
    if (!(momentum_ >= 0 && momentum_ < 1))
      throw base::ConfigError(fmt::format("optim.momentum is {}; it must be in [0, 1)", momentum_));
    if (momentum_ > 0) names_.push_back("momentum_buffer");
  }
  const std::vector<std::string>& state_names() const override { return names_; }
  void step(std::span<const Segment> segments, double lr, int64_t,
            double grad_scale) const override {
    if (segments.empty()) return;
    kernels::sgd(pieces_of(segments), type_of(segments), {.lr = lr, .momentum = momentum_},
                 grad_scale);
  }

 private:
  double momentum_;
  std::vector<std::string> names_;
};

}  // namespace

kernels::Piece Segment::piece() const {
  kernels::Piece piece{.param = data.mutable_data_ptr(),
                       .grad = grad.const_data_ptr(),
                       .count = flat.size(),
                       .weight_decay = weight_decay};
  for (size_t i = 0; i < state.size(); ++i) piece.state[i] = state[i].mutable_data_ptr();
  return piece;
}

std::unique_ptr<Optimizer> make_optimizer(const config::Optim& options) {
  if (options.name == "adamw") return std::make_unique<AdamW>(options);
  if (options.name == "sgd") return std::make_unique<Sgd>(options);
  throw base::ConfigError(
      fmt::format("optim.name '{}' is unknown; use adamw or sgd", options.name));
}

double weight_decay_of(const std::string& parameter, const config::Optim& options) {
  const size_t last = parameter.rfind('.');
  const std::string own = last == std::string::npos ? parameter : parameter.substr(last + 1);
  std::string module = last == std::string::npos ? "" : parameter.substr(0, last);
  module = module.substr(module.rfind('.') + 1);  // npos + 1 is 0: the whole
  std::ranges::transform(module, module.begin(), [](unsigned char c) { return std::tolower(c); });
  if (module.starts_with("ln_") || module.find("norm") != std::string::npos)
    return options.weight_decay_norm;
  return own == "bias" ? options.weight_decay_bias : options.weight_decay;
}

}  // namespace trireme::optim
