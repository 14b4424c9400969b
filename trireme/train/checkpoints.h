#pragma once
// Checkpoints: when a run writes a checkpoint, and which one is its best. Every period, at the end and
// when the run is to stop; with keep_best after an evaluation that beats the best before, by its loss or another metric. With `async`
// files are written while training goes on.

#include <optional>
#include <string>

#include "trireme/train/reporter.h"
#include "trireme/train/run_state.h"

namespace trireme::train {

class Checkpoints {
 public:
  /// All outlive it. `resumed`: the run goes on from a checkpoint of its own folder.
  Checkpoints(const Prepared& run, const Assembly& assembly, const optim::ShardedOptimizer& optimizer,
              const StepGuard& guard, bool resumed, Reporter& reporter);

  /// Does this rank still write files of a step before? Local.
  bool working() const { return saver_.working(); }
  /// Finishes what is in flight, once no rank writes any more. Collective; errors of any rank are
  /// thrown on all.
  void advance(bool any_working);
  /// The step's evaluation. Local.
  void evaluated(const EvalMetrics& found);
  /// Writes a checkpoint where the step is due one, or the run ends with it. Collective.
  void after_step(const Position& position, bool ends);
  /// The newest one's folder; empty: none was written.
  const std::string& newest() const { return newest_; }

 private:
  void finished(const std::string& path);

  const Prepared& run_;
  const Assembly& assembly_;
  const optim::ShardedOptimizer& optimizer_;
  const StepGuard& guard_;
  Reporter& reporter_;
  checkpoint::Saver saver_;
  std::optional<double> best_;  // what keep_best names, of an evaluation
  base::Json measured_;         // by this step's evaluation
  bool improved_ = false;
  std::string newest_;
};

}  // namespace trireme::train
