#pragma once
// Auto schedule: `train.dist.schedule: auto`. The model's layers are timed on the job's own ranks,
// every schedule is simulated with these times, and the fastest one that fits into
// train.dist.auto_memory_mb is taken. All ranks come to the same answer before the first step.

#include "trireme/base/log.h"
#include "trireme/dist/world.h"
#include "trireme/train/prepare.h"

namespace trireme::train {

/// The run with the choice in it: the schedule's name and chunks, and its program in output_dir/schedule.txt, where a
/// resumed run finds it. Runs that do not ask for auto come back as they are. Collective over the world. ConfigError
/// where nothing fits.
Prepared resolve_schedule(Prepared run, bool resume, dist::World& world, base::Logger& log);

}  // namespace trireme::train
