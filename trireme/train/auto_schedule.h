#pragma once
// Auto schedule: `train.dist.schedule: auto`. The model's layers are timed on the job's own ranks,
// every schedule is simulated with these times, and of the fastest that fit into
// train.dist.auto_memory_mb the one that holds least is taken: timings vary, and schedules that are
// closer to each other than that count as equally fast. All ranks come to the same answer before the
// first step. On one stage there is nothing to choose, unless a limit or a number of chunks is given.

#include "trireme/base/log.h"
#include "trireme/dist/world.h"
#include "trireme/train/prepare.h"

namespace trireme::train {

/// The run with the choice in its placement, in output_dir/schedule.txt with what it was chosen for, and that file in its
/// config (train.dist.auto_choice). A resumed run, and one that is given such a file, takes it from there, or chooses again
/// and says so where it is for another layout, batch or limit. Runs that do not ask for auto come back as they are.
/// Collective over the world. ConfigError where nothing fits or the file is missing.
Prepared resolve_schedule(Prepared run, bool resume, dist::World& world, base::Logger& log);

}  // namespace trireme::train
