#pragma once
// Measured: what really ran, in the words of a simulation, so that both are drawn and compared alike.

#include <string>

#include "trireme/schedule/simulate.h"

namespace trireme::schedule {

/// `timeline`: each rank's compute actions with their times. Activations are counted in whole stages.
Simulation measured(const Schedule& schedule, std::vector<std::vector<Span>> timeline);
/// The median times of each chunk's actions; of a full backward each kind takes half.
Costs measured_costs(const Schedule& schedule, const Simulation& measured);
/// A row a rank: busy and idle time, measured and simulated with the measured times. In the unit of the timeline.
std::string compare(const Simulation& measured, const Simulation& simulated);

}  // namespace trireme::schedule
