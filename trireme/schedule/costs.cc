#include "trireme/schedule/costs.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"

namespace trireme::schedule {

ChunkCosts costs_of(const Costs& costs, const Schedule& schedule, int chunk) {
  if (!costs.chunks.empty()) {
    if (std::ssize(costs.chunks) != schedule.chunks)
      throw base::ConfigError(
          fmt::format("costs of {} chunks were given, but schedule {} has {}; give one for each",
                      costs.chunks.size(), schedule.name, schedule.chunks));
    return costs.chunks[chunk];
  }
  // Of a whole stage a chunk takes as much as there are ranks for each chunk.
  const double share = static_cast<double>(schedule.ranks) / schedule.chunks;
  return {costs.f * share, costs.i * share, costs.w * share, share, 0};
}

ChunkCosts recomputed(const ChunkCosts& costs, double kept) {
  return {costs.f, costs.f + costs.i + costs.w, 0, costs.activation * kept,
          costs.working + costs.activation * (1 - kept)};
}

void check(const Costs& costs) {
  auto require = [](const std::string& where, std::initializer_list<double> values) {
    if (!std::ranges::all_of(values, [](double v) { return std::isfinite(v) && v >= 0; }))
      throw base::ConfigError(fmt::format("costs{}: {}; expected finite numbers of at least 0",
                                          where, fmt::join(values, ", ")));
  };
  require("", {costs.f, costs.i, costs.w, costs.comm});
  for (size_t c = 0; c < costs.chunks.size(); ++c) {
    const ChunkCosts& of = costs.chunks[c];
    require(fmt::format(" of chunk {}", c), {of.f, of.i, of.w, of.activation, of.working});
  }
}

}  // namespace trireme::schedule
