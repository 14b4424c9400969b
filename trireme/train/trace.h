#pragma once
// Trace: the timeline of a step as it was measured, drawn beside what the schedule promised.

#include <string>

#include "trireme/dist/world.h"
#include "trireme/pipeline/executor.h"

namespace trireme::train {

/// World rank 0 writes FOLDER/step_00000010.svg, .trace.json (Chrome, Perfetto), .json (the step's
/// own median costs of each chunk, in ms) and .txt, and gets the text: busy time and bubble of each
/// stage, measured and simulated with the measured costs. Collective over the pipeline axis.
/// IoError.
std::string write_trace(const std::string& folder, int64_t step, const schedule::Schedule& schedule,
                        const pipeline::StepResult& result, const dist::DeviceMesh& mesh);

}  // namespace trireme::train
