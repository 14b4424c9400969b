#pragma once
// Telemetry: where the time of a run goes, on each of its ranks. The ranks share the figures of
// every step at its end, so that each knows who is slowest and whether to stop; sums over the run
// become a report when it is over.
//
//   Stopwatch watch;  ...;  phases.data = watch.lap();
//   StepFigures figures = telemetry.share(phases, stop, saving);

#include <chrono>
#include <optional>
#include <string>

#include "trireme/optim/sharded_optimizer.h"
#include "trireme/train/metrics.h"
#include "trireme/train/prepare.h"

namespace trireme::train {

class Stopwatch {
 public:
  /// Seconds since it was made, or since the last lap.
  double lap() {
    const auto now = Clock::now();
    const std::chrono::duration<double> passed = now - std::exchange(last_, now);
    return passed.count();
  }
  /// Seconds since it was made.
  double total() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point last_ = start_;
};

/// Seconds that `work` takes.
template <class Work>
double timed(const Work& work) {
  Stopwatch watch;
  work();
  return watch.total();
}

/// A step as all ranks saw it.
struct StepFigures {
  bool stop = false;   // wanted by any
  bool saving = false;  // a checkpoint's files are still being written by any
  int64_t memory = 0;  // largest peak of live bytes
  Phases phases = {};  // mean
  int slowest_rank = 0;
  double slowest_excess = 0;
};

/// From what the ranks report of a step, in rank order. Pure. "Slowest" is who computed longest
/// (data, passes, optimizer), not who waited.
StepFigures figures_of(const std::vector<Phases>& ranks);

class Telemetry {
 public:
  /// Times a matrix product on all ranks at once, unless the configuration knows their peak.
  /// `run` and `mesh` outlive it. Collective over the world.
  Telemetry(const Prepared& run, const dist::DeviceMesh& mesh);

  /// Ends a step. Collective over the world.
  StepFigures share(const Phases& own, bool stop, bool saving);

  /// Model FLOPs utilisation (Chowdhery et al., "PaLM", 2022, appendix B): operations of the matrix
  /// products and of attention that a step needs, three times those of the forward pass, whatever is
  /// recomputed, over what all ranks could have done in its time.
  double utilization(int64_t samples, double seconds) const;

  /// The norms of each layer after `step`, where train.telemetry.layer_norms wants them; a tied parameter belongs to the
  /// first layer that uses it. Collective over the world.
  std::vector<LayerNorms> layer_norms(const optim::ShardedOptimizer& optimizer, int64_t step, double loss_scale) const;

  /// Writes FOLDER/telemetry.json on rank 0: seconds by phase, bytes sent by axis and kind, and peak
  /// memory beside the layout's prediction, for each rank. Returns a table for a person there.
  /// `checkpoint_seconds` are this rank's since the last step. Collective over the world. IoError.
  std::string write_report(const std::string& folder, double checkpoint_seconds);

 private:
  base::Json own_report() const;

  const Prepared& run_;
  const dist::DeviceMesh& mesh_;
  double sample_flops_ = 0;  // of a step, for each sample
  double peak_flops_ = 0;    // per second, of all ranks
  int64_t steps_ = 0;
  std::vector<Phases> sums_;  // by rank
};

}  // namespace trireme::train
