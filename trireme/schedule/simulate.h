#pragma once
// check and simulate: run a schedule on a clock instead of tensors.

#include <string>
#include <vector>

#include "trireme/schedule/costs.h"

namespace trireme::schedule {

/// Refuses deadlock, missing or double actions, W before I, unmatched sends: ConfigError naming rank, cell and
/// action.
void check(const Schedule& schedule);

struct Span {
  Action action;
  double begin = 0, end = 0;
};
struct Simulation {
  double makespan = 0;
  double bubble = 0;      // idle share of ranks x makespan
  double bubble_own = 0;  // largest idle share of a rank between its own first and last action
  std::vector<double> peak_activations;       // per rank; see Costs::chunks for the unit
  std::vector<double> idle;                   // per rank: share of the makespan
  std::vector<std::vector<Span>> timeline;    // per rank, compute actions
};
/// Activations are held from the forward to the end of B or W; a forward-only schedule holds one at a time. ConfigError
/// for impossible costs and for a schedule that does not come to its end.
Simulation simulate(const Schedule& schedule, const Costs& costs);

/// The figures of a timeline: per rank what ran, in order, all on one clock that starts with the step. Transfers in it
/// are left out. `costs` serve for the memory alone.
Simulation summarize(const Schedule& schedule, std::vector<std::vector<Span>> timeline, const Costs& costs);

}  // namespace trireme::schedule
