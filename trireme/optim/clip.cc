#include "trireme/optim/clip.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "trireme/base/error.h"

namespace trireme::optim {
namespace {

// Collective: the alphabetically first parameter of any rank with a gradient that is not finite.
std::string first_bad_name(std::span<const Segment> counted, const comm::Comm& world) {
  constexpr int64_t kLength = 256;
  std::string bad;
  for (const Segment& segment : counted) {
    const std::string& name = segment.param->spec.name;
    if ((bad.empty() || name < bad) && !at::isfinite(segment.grad).all().item<bool>()) bad = name;
  }
  const auto ranks = static_cast<size_t>(world.size());
  std::string all(ranks * kLength, '\0');
  char* own = all.data() + world.rank() * kLength;
  std::memcpy(own, bad.data(), std::min<size_t>(bad.size(), kLength - 1));
  world.all_gather(own, all.data(), std::vector<int64_t>(ranks, kLength), base::DType::u8).wait();
  std::string first;
  for (size_t r = 0; r < ranks; ++r) {
    std::string name = all.c_str() + r * kLength;
    if (!name.empty() && (first.empty() || name < first)) first = name;
  }
  return first;
}

}  // namespace

bool counts_for_norm(const layout::ParamSpec& spec, const layout::Coord& coord) {
  layout::Coord any_data_rank = coord;
  any_data_rank.dp = 0;
  return layout::is_owner(spec, any_data_rank);
}

double total_norm(std::span<const Segment> counted, double type, const comm::Comm& world) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (type != 1 && type != 2 && type != kInfinity)
    throw base::ConfigError(fmt::format("optim.clip_grad_norm_type is {}; use 1, 2 or .inf", type));
  const kernels::Norm kind = type == 1   ? kernels::Norm::absolute
                             : type == 2 ? kernels::Norm::squares
                                         : kernels::Norm::largest;
  kernels::NormTerm term;
  for (at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    std::vector<kernels::Piece> pieces;
    for (const Segment& segment : counted)
      if (segment.grad.scalar_type() == dtype) pieces.push_back(segment.piece());
    term.add(kernels::norm_term(pieces, dtype, kind), kind);
  }
  // The flag speaks: a maximum may lose a NaN.
  double exchanged[2] = {term.finite ? term.value : 0.0, term.finite ? 0.0 : 1.0};
  world
      .all_reduce(exchanged, 2, base::DType::f64,
                  type == kInfinity ? comm::Reduce::max : comm::Reduce::sum)
      .wait();
  if (exchanged[1] != 0) {
    throw base::ConfigError(
        fmt::format("the gradient of {} is not finite (infinity or NaN), so the step was not "
                    "taken; lower the learning "
                    "rate, warm up longer or clip gradients, or resume from an earlier checkpoint",
                    first_bad_name(counted, world)));
  }
  return type == 2 ? std::sqrt(exchanged[0]) : exchanged[0];
}

double clip_factor(double norm, std::optional<double> max_norm) {
  return max_norm ? std::min(1.0, *max_norm / (norm + 1e-6)) : 1.0;
}

}  // namespace trireme::optim
