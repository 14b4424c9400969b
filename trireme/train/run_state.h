#pragma once
// RunState: where a run stands, and how it is written to and read from a checkpoint: parameters, optimizer, data
// position. Random numbers need nothing: they are functions of (seed, step).

#include <optional>
#include <string>

#include "trireme/base/log.h"
#include "trireme/optim/sharded_optimizer.h"
#include "trireme/train/assembly.h"

namespace trireme::train {

struct Position {
  int64_t step = 0;              // finished steps
  int64_t consumed_samples = 0;  // where the data go on
};

/// Prepares the run's folder and its logs; with `resume` the newest checkpoint to go on from, where there is one, on
/// every rank alike. Collective over the world. ConfigError when the folder holds a run that is not to be resumed.
std::optional<checkpoint::Checkpoint> open_run(const config::RunConfig& config, const dist::DeviceMesh& mesh,
                                               bool resume, base::Logger& log);

/// Writes a checkpoint of the run; returns its folder. Collective over the world.
std::string save_run(const config::RunConfig& config, const Assembly& assembly,
                     const optim::ShardedOptimizer& optimizer, const Position& position);

/// Fills optimizer and position from a checkpoint (make_parameters has read the weights). ConfigError when the run's
/// seed is another or the checkpoint carries no training state. Local.
Position restore_run(const config::RunConfig& config, const checkpoint::Checkpoint& checkpoint,
                     optim::ShardedOptimizer& optimizer);

}  // namespace trireme::train
