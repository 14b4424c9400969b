#pragma once
// StepGuard: decides after each backward pass whether its gradients may move the weights. It holds
// the loss scaler of fp16 and the divergence watch:
//
//   - a step none of whose tokens counts is skipped, with a note;
//   - fp16 gradients that overflow cost the step and move the scale, as long as the scale can give;
//   - any other loss or gradient that is not finite is a divergence: the run stops, or skips the
//     step up to a limit, as `train.divergence` says, and the step's samples are named.
//
// A skipped step moves no weight, no optimizer state and no learning rate; its data are consumed.

#include <optional>
#include <string>

#include "trireme/base/json.h"
#include "trireme/config/run_config.h"
#include "trireme/layout/sbp.h"
#include "trireme/optim/scaler.h"
#include "trireme/optim/sharded_optimizer.h"
#include "trireme/pipeline/executor.h"

namespace trireme::train {

struct Verdict {
  optim::StepReport report;
  std::string note;   // for the log, where something happened
  bool stop = false;  // the run cannot go on; `note` says why and what to do
};

class StepGuard {
 public:
  explicit StepGuard(const config::Train& train);

  /// The factor of the loss in the step that comes; nothing where none is used.
  std::optional<double> loss_scale() const;
  /// Takes the optimizer's step `step` (from 1), or leaves it. `samples` are the step's places in
  /// the run's order of samples. Every rank comes to the same verdict. Collective over the world.
  Verdict finish(optim::ShardedOptimizer& optimizer, const pipeline::StepResult& result, double lr,
                 int64_t step, layout::Range samples);

  /// For checkpoints. A state of another precision, or none (null), leaves a new guard as it is.
  base::Json state() const;
  void restore(const base::Json& state);

 private:
  Verdict diverged(optim::StepReport report, const std::string& what, int64_t step,
                   layout::Range samples);

  config::Divergence divergence_;
  std::optional<optim::LossScaler> scaler_;
  bool names_overflow_ = false;
  int64_t skipped_ = 0;  // diverged steps in a row
};

}  // namespace trireme::train
