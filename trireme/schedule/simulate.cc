#include "trireme/schedule/simulate.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/schedule/walk.h"

namespace trireme::schedule {

Simulation simulate(const Schedule& schedule, const Costs& costs) {
  check(costs);
  std::vector<ChunkCosts> of(schedule.chunks);
  for (int c = 0; c < schedule.chunks; ++c) of[c] = costs_of(costs, schedule, c);
  auto duration = [&](const Action& action) {
    const ChunkCosts& chunk = of[action.chunk];
    switch (action.op) {
      case Op::F:
        return chunk.f;
      case Op::B:
        return chunk.i + chunk.w;
      case Op::I:
        return chunk.i;
      case Op::W:
        return chunk.w;
      default:
        return 0.0;
    }
  };
  // Equal chunks are counted in whole numbers and scaled at the end.
  const bool alike = costs.chunks.empty();
  const double unit = alike ? of[0].activation : 1;

  Simulation result;
  result.timeline.resize(schedule.ranks);
  result.peak_activations.resize(schedule.ranks, 0);
  std::vector<double> live(schedule.ranks, 0), busy(schedule.ranks, 0);
  std::vector<double>& peak = result.peak_activations;
  const bool forward_only = schedule.forward_only();
  const bool finished = Walk(schedule).run(
      duration, costs.comm, [&](int rank, const Action& action, double begin, double end) {
        if (!is_compute(action.op)) return;
        result.timeline[rank].push_back({action, begin, end});
        result.makespan = std::max(result.makespan, end);
        busy[rank] += end - begin;
        const ChunkCosts& chunk = of[action.chunk];
        const double held = alike ? 1 : chunk.activation;
        const bool backward = action.op == Op::B || action.op == Op::I;
        if (action.op == Op::F) live[rank] += held;
        peak[rank] = std::max(peak[rank], live[rank] + (backward ? chunk.working : 0));
        // The weights' gradient needs the layer's inputs: they live until W. Without a backward
        // nothing stays.
        if (action.op == Op::B || action.op == Op::W || forward_only) live[rank] -= held;
      });
  if (!finished)
    throw base::ConfigError(
        fmt::format("schedule {} does not come to its end; `check` says why", schedule.name));

  double idle = 0;
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    peak[rank] *= unit;
    idle += result.makespan - busy[rank];
    if (result.timeline[rank].empty()) continue;
    const double own = result.timeline[rank].back().end - result.timeline[rank].front().begin;
    if (own > 0) result.bubble_own = std::max(result.bubble_own, (own - busy[rank]) / own);
  }
  if (result.makespan > 0) result.bubble = idle / (schedule.ranks * result.makespan);
  return result;
}

}  // namespace trireme::schedule
