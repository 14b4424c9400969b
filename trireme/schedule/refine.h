#pragma once
// refine: a local search over the order of a schedule's compute actions. It moves single actions to other places of
// their rank's program and keeps what makes the pipeline faster under the given costs. Deterministic: the same input
// gives the same schedule on every rank.

#include "trireme/schedule/costs.h"

namespace trireme::schedule {

/// What makes a schedule better: the time of a step, or the largest idle share of a rank between its own first and last
/// action (Simulation::bubble_own), which is the rest of the bubble where the next step can begin before this one ends.
enum class Goal { makespan, own_bubble };

/// `schedule` holds F, I and W alone and is valid; the result is valid, holds at most `memory` chunk activations on each
/// rank and is no worse. `actions` bounds the work: about that many actions are simulated. Schedules too long for a
/// useful search stay as they are.
Schedule refine(const Schedule& schedule, const Costs& costs, Goal goal, const std::vector<int>& memory,
                int64_t actions);

/// The smaller, the better; infinite where the schedule does not come to its end.
double badness(const Schedule& schedule, const Costs& costs, Goal goal);

}  // namespace trireme::schedule
