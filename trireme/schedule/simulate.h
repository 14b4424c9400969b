#pragma once
// check and simulate: run a schedule on a clock instead of tensors.

#include <string>
#include <vector>

#include "trireme/schedule/schedule.h"

namespace trireme::schedule {

/// Refuses deadlock, missing or double actions, W before I, unmatched sends: ConfigError naming rank, cell and
/// action.
void check(const Schedule& schedule);

/// Costs of a whole stage (a chunk takes its share; B takes i + w) and of one message.
struct Costs {
  double f = 1, i = 1, w = 1, comm = 0;
};
struct Span {
  Action action;
  double begin = 0, end = 0;
};
struct Simulation {
  double makespan = 0;
  double bubble = 0;      // idle share of ranks x makespan
  double bubble_own = 0;  // largest idle share of a rank between its own first and last action
  std::vector<double> peak_activations;       // per rank, in whole-stage activations of one micro-batch
  std::vector<std::vector<Span>> timeline;    // per rank, compute actions
};
Simulation simulate(const Schedule& schedule, const Costs& costs);

}  // namespace trireme::schedule
