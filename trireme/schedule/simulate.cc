#include "trireme/schedule/simulate.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/schedule/walk.h"

namespace trireme::schedule {

Simulation simulate(const Schedule& schedule, const Costs& costs) {
  // Of a whole stage a chunk takes as much as there are ranks for each chunk.
  const double share = static_cast<double>(schedule.ranks) / schedule.chunks;
  auto duration = [&](const Action& action) {
    switch (action.op) {
      case Op::F:
        return costs.f * share;
      case Op::B:
        return (costs.i + costs.w) * share;
      case Op::I:
        return costs.i * share;
      case Op::W:
        return costs.w * share;
      default:
        return 0.0;
    }
  };

  Simulation result;
  result.timeline.resize(schedule.ranks);
  result.peak_activations.resize(schedule.ranks, 0);
  std::vector<int> live(schedule.ranks, 0), peak(schedule.ranks, 0);
  std::vector<double> busy(schedule.ranks, 0);
  const bool forward_only = schedule.forward_only();
  const bool finished = Walk(schedule).run(
      duration, costs.comm, [&](int rank, const Action& action, double begin, double end) {
        if (!is_compute(action.op)) return;
        result.timeline[rank].push_back({action, begin, end});
        result.makespan = std::max(result.makespan, end);
        busy[rank] += end - begin;
        if (action.op == Op::F) peak[rank] = std::max(peak[rank], ++live[rank]);
        // The weights' gradient needs the layer's inputs: they live until W. Without a backward
        // nothing stays.
        if (action.op == Op::B || action.op == Op::W || forward_only) --live[rank];
      });
  if (!finished)
    throw base::ConfigError(
        fmt::format("schedule {} does not come to its end; `check` says why", schedule.name));

  double idle = 0;
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    result.peak_activations[rank] = peak[rank] * share;
    idle += result.makespan - busy[rank];
    if (result.timeline[rank].empty()) continue;
    const double own = result.timeline[rank].back().end - result.timeline[rank].front().begin;
    if (own > 0) result.bubble_own = std::max(result.bubble_own, (own - busy[rank]) / own);
  }
  if (result.makespan > 0) result.bubble = idle / (schedule.ranks * result.makespan);
  return result;
}

}  // namespace trireme::schedule
