#include "trireme/schedule/simulate.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/schedule/walk.h"

namespace trireme::schedule {

Simulation summarize(const Schedule& schedule, std::vector<std::vector<Span>> timeline,
                     const Costs& costs) {
  std::vector<ChunkCosts> of;
  for (int c = 0; c < schedule.chunks; ++c) of.push_back(costs_of(costs, schedule, c));
  // Equal chunks are counted in whole numbers and scaled at the end.
  const bool alike = costs.chunks.empty();
  const bool forward_only = schedule.forward_only();

  Simulation result;
  result.peak_activations.resize(schedule.ranks, 0);
  std::vector<double> busy(schedule.ranks, 0);
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    std::erase_if(timeline[rank], [](const Span& span) { return !is_compute(span.action.op); });
    double live = 0, peak = 0;
    for (const auto& [action, begin, end] : timeline[rank]) {
      const ChunkCosts& chunk = of[action.chunk];
      const double held = alike ? 1 : chunk.activation;
      const bool backward = action.op == Op::B || action.op == Op::I;
      if (action.op == Op::F) live += held;
      peak = std::max(peak, live + (backward ? chunk.working : 0));
      // The weights' gradient needs the layer's inputs: they live until W. Without a backward
      // nothing stays.
      if (action.op == Op::B || action.op == Op::W || forward_only) live -= held;
      busy[rank] += end - begin;
      result.makespan = std::max(result.makespan, end);
    }
    result.peak_activations[rank] = alike ? peak * of[0].activation : peak;
    if (timeline[rank].empty()) continue;
    const double own = timeline[rank].back().end - timeline[rank].front().begin;
    if (own > 0) result.bubble_own = std::max(result.bubble_own, (own - busy[rank]) / own);
  }
  double idle = 0;
  for (double of_rank : busy) {
    const double wait = result.makespan - of_rank;
    result.idle.push_back(result.makespan > 0 ? wait / result.makespan : 0);
    idle += wait;
  }
  if (result.makespan > 0) result.bubble = idle / (schedule.ranks * result.makespan);
  result.timeline = std::move(timeline);
  return result;
}

Simulation simulate(const Schedule& schedule, const Costs& costs) {
  check(costs);
  std::vector<ChunkCosts> of;
  for (int c = 0; c < schedule.chunks; ++c) of.push_back(costs_of(costs, schedule, c));
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
  std::vector<std::vector<Span>> timeline(schedule.ranks);
  const bool finished = Walk(schedule).run(
      duration, costs.comm, [&](int rank, const Action& action, double begin, double end) {
        if (is_compute(action.op)) timeline[rank].push_back({action, begin, end});
      });
  if (!finished)
    throw base::ConfigError(
        fmt::format("schedule {} does not come to its end; `check` says why", schedule.name));
  return summarize(schedule, std::move(timeline), costs);
}

}  // namespace trireme::schedule
