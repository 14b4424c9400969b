#pragma once
// Executor: runs a schedule on a model. For each action of this rank's program it waits for the receive it needs,
// runs, and posts the send; receives are posted ahead. Gradients end up in the model's ParamStore, not yet summed
// over data-parallel ranks or holders of a tie: that is the optimizer's, which may listen as a StepObserver.
//
//   Executor executor(schedule::generate("1f1b", {stages, micro_batches}), model, mesh);
//   StepResult step = executor.run(batches, {.seed = seed, .step = step}, nn::Mode::train);

#include <limits>
#include <span>

#include "trireme/pipeline/p2p.h"
#include "trireme/pipeline/stage.h"
#include "trireme/schedule/simulate.h"

namespace trireme::pipeline {

struct RunOptions {
  bool loss = true;      // needs labels
  bool outputs = false;  // keep what the last chunk returns
  bool record = false;   // note what ran and when
  std::span<nn::KvCache> caches = {};  // one for each micro-batch, or none
};

struct StepResult {
  double loss_sum = 0;  // over the counted items of the global batch; the same on every rank
  int64_t weight = 0;   // number of counted items of the global batch; with 0 the gradients are zero: skip the step
  double loss() const {
    return weight > 0 ? loss_sum / static_cast<double>(weight) : std::numeric_limits<double>::quiet_NaN();
  }
  std::vector<nn::State> outputs;        // on the last stage, by micro-batch
  std::vector<schedule::Span> executed;  // seconds since the start of the step
  int64_t peak_live = 0;                 // most chunk activations kept at once
};

class Executor {
 public:
  /// Checks the schedule and adds its transfers; ConfigError where it does not fit mesh or model. `model`, `mesh` and
  /// `observer` (may be null) outlive the executor. Not collective.
  Executor(const schedule::Schedule& schedule, nn::Model& model, const dist::DeviceMesh& mesh,
           const StageOptions& options = {}, StepObserver* observer = nullptr);

  /// Runs one step. Every stage and tensor rank is given the same micro-batches, as many as the schedule has; those
  /// without rows take part in nothing. With a backward pass the gradients are zeroed first and made for the mean
  /// over all counted items of the global batch. Collective over the world.
  StepResult run(std::span<const nn::Batch> micro_batches, const nn::Random& random, nn::Mode mode,
                 const RunOptions& options = {});

 private:
  struct Step;
  void execute(const schedule::Action& action, Step& step);
  void forward(const schedule::Action& action, Step& step);
  void backward(const schedule::Action& action, Step& step);
  void post_receives(size_t position, Step& step);
  nn::Context context(int micro_batch, const Step& step) const;
  /// A State on its way to the action that needs it.
  nn::State take(schedule::Op op, int chunk, int micro_batch, Step& step);
  bool is_last(int chunk) const { return chunk + 1 == schedule_.chunks; }

  schedule::Schedule schedule_;
  nn::Model& model_;
  const dist::DeviceMesh& mesh_;
  bool trains_;
  std::vector<int> local_chunk_;  // by global chunk; -1 where another stage holds it
  std::vector<bool> splits_;      // by chunk and micro-batch: weight gradients wait for W
  Stage stage_;
  P2P p2p_;
};

}  // namespace trireme::pipeline
