#pragma once
// Draw: a simulated schedule for the eye and for other programs. A measured timeline draws alike: fill a
// Simulation's timeline.

#include <string>

#include "trireme/base/json.h"
#include "trireme/schedule/simulate.h"

namespace trireme::schedule {

/// A row a rank, time from left to right: "0F2" is a cell of chunk 0, forward, micro-batch 2 ("F2" where each rank
/// has one chunk), dots are idle time. Then makespan, bubbles and peak activations.
std::string draw_text(const Schedule& schedule, const Simulation& simulation);
/// A standalone SVG document.
std::string draw_svg(const Schedule& schedule, const Simulation& simulation);
/// The trace event format of chrome://tracing and Perfetto; one unit of time is one millisecond.
base::Json chrome_trace(const Schedule& schedule, const Simulation& simulation);
/// The document of `trireme pipeline --json`.
base::Json to_json(const Schedule& schedule, const Costs& costs, const Simulation& simulation);

}  // namespace trireme::schedule
