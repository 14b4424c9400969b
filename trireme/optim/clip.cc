#include "trireme/optim/clip.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "trireme/base/error.h"

namespace trireme::optim {
bool counts_for_norm(const layout::ParamSpec& spec, const layout::Coord& coord) {
  layout::Coord any_data_rank = coord;
  any_data_rank.dp = spec.layout.data_rank.value_or(0);
  return layout::is_owner(spec, any_data_rank);
}

double total_norm(std::span<const Segment> counted, std::span<const Segment> copies, double type,
                  const comm::Comm& world) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (type != 1 && type != 2 && type != kInfinity)
    throw base::ConfigError(fmt::format("optim.clip_grad_norm_type is {}; use 1, 2 or .inf", type));
  const kernels::Norm kind = type == 1   ? kernels::Norm::absolute
                             : type == 2 ? kernels::Norm::squares
                                         : kernels::Norm::largest;
  const auto term_of = [&](std::span<const Segment> segments) {
    kernels::NormTerm term;
    for (at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      std::vector<kernels::Piece> pieces;
      for (const Segment& segment : segments)
        if (segment.grad.scalar_type() == dtype) pieces.push_back(segment.piece());
      if (!pieces.empty()) term.add(kernels::norm_term(pieces, dtype, kind, segments.front().grad.device()), kind);
    }
    return term;
  };
  const kernels::NormTerm term = term_of(counted);
  const bool finite = term.finite && term_of(copies).finite;
  // The flag speaks: a maximum may lose a NaN.
  double exchanged[2] = {finite ? term.value : 0.0, finite ? 0.0 : 1.0};
  world
      .all_reduce(exchanged, 2, base::DType::f64,
                  type == kInfinity ? comm::Reduce::max : comm::Reduce::sum)
      .wait();
  if (exchanged[1] != 0) return std::numeric_limits<double>::quiet_NaN();
  return type == 2 ? std::sqrt(exchanged[0]) : exchanged[0];
}

std::string first_not_finite(std::span<const Segment> segments, int stage,
                             const comm::Comm& world) {
  struct Found {
    int64_t stage = -1, place = 0;
    char name[240] = {};
  };
  Found own;
  for (size_t i = 0; i < segments.size() && own.stage < 0; ++i) {
    if (at::isfinite(segments[i].grad).all().item<bool>()) continue;
    own.stage = stage;
    own.place = static_cast<int64_t>(i);
    segments[i].param->spec.name.copy(own.name, sizeof(own.name) - 1);
  }
  const auto ranks = static_cast<size_t>(world.size());
  std::vector<Found> all(ranks);
  all[static_cast<size_t>(world.rank())] = own;
  world
      .all_gather(&all[static_cast<size_t>(world.rank())], all.data(),
                  std::vector<int64_t>(ranks, sizeof(Found)), base::DType::u8)
      .wait();
  return std::ranges::min(all, {}, [](const Found& f) { return std::pair(-f.stage, f.place); }).name;
}

double clip_factor(double norm, std::optional<double> max_norm) {
  return max_norm ? std::min(1.0, *max_norm / (norm + 1e-6)) : 1.0;
}

}  // namespace trireme::optim
