#pragma once
// Draw: a simulated schedule for the eye and for other programs. A measured timeline draws alike: `summarize` makes a
// Simulation of it.

#include <string>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/schedule/simulate.h"

namespace trireme::schedule {

/// A row a rank, time from left to right: "F2" is a cell of forward, micro-batch 2 ("5F2", of chunk 5, where ranks have
/// several chunks), dashes draw a long action out, dots are idle time. Below, a legend, then makespan, bubbles and peak
/// activations. The rows are as wide as every label needs, but not wider than `columns`: then short actions lose their
/// label, not their place.
std::string draw_text(const Schedule& schedule, const Simulation& simulation, double columns = 20000);
/// A standalone SVG document, not much wider than `pixels`. A colour for each kind of action, darker for a rank's later
/// chunks, with a legend.
std::string draw_svg(const Schedule& schedule, const Simulation& simulation, double pixels = 40000);
/// The trace event format of chrome://tracing and Perfetto; one unit of time is one millisecond.
base::Json chrome_trace(const Schedule& schedule, const Simulation& simulation);
/// The document of `trireme pipeline --json`; where chunks have costs of their own `costs` lists them.
base::Json to_json(const Schedule& schedule, const Costs& costs, const Simulation& simulation);

/// One of the above by name, text, svg, trace or json, or schedule: the file of a schedule, to start one's own from.
/// ConfigError for another name.
std::string draw(const std::string& format, const Schedule& schedule, const Costs& costs,
                 const Simulation& simulation);

/// A table of each rank's idle share of the makespan, measured and simulated, and their difference in points; in its last
/// line the bubble of all ranks and both makespans. Both are of the same schedule.
std::string draw_measured(const Simulation& measured, const Simulation& simulated);

}  // namespace trireme::schedule
