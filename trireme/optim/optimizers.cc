#include "trireme/optim/optimizers.h"

#include <ATen/ATen.h>

#include "trireme/base/error.h"
#include "trireme/optim/rules.h"

namespace trireme::optim {

kernels::Piece Segment::piece() const {
  kernels::Piece piece{.param = data.mutable_data_ptr(),
                       .grad = grad.const_data_ptr(),
                       .count = flat.size(),
                       .weight_decay = weight_decay,
                       .lr_scale = lr_scale};
  for (size_t i = 0; i < state.size(); ++i) piece.state[i] = state[i].mutable_data_ptr();
  return piece;
}

base::Registry<MakeOptimizer>& optimizers() {
  static const auto local = [](auto make) {
    return [make](const config::Optim& options, const WholeTensors&) { return make(options); };
  };
  static base::Registry<MakeOptimizer> all(
      "optim.name", {{"adamw", local([](const config::Optim& o) { return make_adam(o, true); })},
                     {"adam", local([](const config::Optim& o) { return make_adam(o, false); })},
                     {"sgd", local(make_sgd)},
                     {"lion", local(make_lion)},
                     {"lamb", make_lamb},
                     {"adafactor", make_adafactor},
                     {"muon", make_muon}});
  return all;
}

std::unique_ptr<Optimizer> make_optimizer(const config::Optim& options, WholeTensors whole) {
  return optimizers().get(options.name)(options, std::move(whole));
}

void check_moments(const config::Optim& options) {
  const auto& betas = options.betas;
  if (betas.size() != 2 || !(betas[0] >= 0 && betas[0] < 1) || !(betas[1] >= 0 && betas[1] < 1))
    throw base::ConfigError(fmt::format("optim.betas must be two numbers in [0, 1), given [{}]",
                                        fmt::join(betas, ", ")));
  if (!(options.eps >= 0))
    throw base::ConfigError(fmt::format("optim.eps is {}; it must be 0 or more", options.eps));
}

double momentum_of(const config::Optim& options, double otherwise) {
  const double momentum = options.momentum.value_or(otherwise);
  if (!(momentum >= 0 && momentum < 1))
    throw base::ConfigError(fmt::format("optim.momentum is {}; it must be in [0, 1)", momentum));
  return momentum;
}

std::vector<kernels::Piece> pieces_of(std::span<const Segment> segments) {
  std::vector<kernels::Piece> pieces;
  pieces.reserve(segments.size());
  for (const Segment& segment : segments) pieces.push_back(segment.piece());
  return pieces;
}

at::ScalarType type_of(std::span<const Segment> segments) {
  return segments.front().data.scalar_type();
}

}  // namespace trireme::optim
