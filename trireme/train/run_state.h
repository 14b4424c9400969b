#pragma once
// RunState: where a run stands, and how it is written to and read from a checkpoint: parameters, optimizer, data
// position. Random numbers need nothing: they are functions of (seed, step).

#include <string>

#include "trireme/base/log.h"
#include "trireme/checkpoint/save.h"
#include "trireme/optim/sharded_optimizer.h"
#include "trireme/train/prepare.h"
#include "trireme/train/step_guard.h"

namespace trireme::train {

struct Position {
  int64_t step = 0;              // finished steps
  int64_t consumed_samples = 0;  // where the data go on
};

/// Makes the run's folder with its config.yaml, on rank 0, and opens each rank's log in it. Collective over `world`.
void open_folder(const config::RunConfig& config, const comm::Comm& world, base::Logger& log);

/// A checkpoint of the run as it stands, to be saved. Local.
checkpoint::SaveRequest checkpoint_of(const Prepared& run, const Assembly& assembly,
                                      const optim::ShardedOptimizer& optimizer, const StepGuard& guard,
                                      const Position& position);

/// What keep_best names, of the evaluation that a run's `best` checkpoint was kept for; nothing when there is none. Local.
std::optional<double> best_evaluation(const config::RunConfig& config);

/// ConfigError when a checkpoint carries no training state, that of a run with another model (what is dropped in
/// training, and how weights were drawn, may change), another
/// optimizer, seed or training data, or stands beyond the run's end. Local; looks at no tensor.
void check_same_run(const Prepared& run, const checkpoint::Checkpoint& checkpoint);

/// What changes in a run that goes on from `checkpoint`, though it may: a line for the log, empty when nothing does.
std::string note_on_resume(const Prepared& run, const checkpoint::Manifest& manifest);

/// What model.strict false left out of the weights of `path`: a line for the log.
std::string note_on_mismatch(const Prepared& run, const checkpoint::Mismatch& mismatch, const std::string& path);

/// Gives 16-bit parameters' masters the values that the parameters were rounded from, those of `from` or the initial
/// ones (null), and lets averages start from them. Local.
void fill_masters(const Assembly& assembly, optim::ShardedOptimizer& optimizer, const checkpoint::Checkpoint* from);

/// Fills optimizer and guard from a checkpoint that check_same_run has passed (make_parameters and fill_masters have
/// read the weights) and says where the run stands. Averages that the checkpoint lacks start from the weights. Local.
Position restore_run(const checkpoint::Checkpoint& checkpoint, optim::ShardedOptimizer& optimizer, StepGuard& guard);

}  // namespace trireme::train
