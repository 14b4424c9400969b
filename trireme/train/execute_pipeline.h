#pragma once
// execute_pipeline: one step's forward and backward passes with their gradient exchange. The schedule runs without
// waiting for gradients; a bucket's exchange starts as soon as its last contribution has landed, inside the
// pipeline's cool-down.

#include "trireme/optim/sharded_optimizer.h"
#include "trireme/pipeline/executor.h"

namespace trireme::train {

/// Tells the gradient exchange how far a backward pass has come.
class OverlappedSync : public pipeline::StepObserver {
 public:
  explicit OverlappedSync(optim::GradSync& sync) : sync_(sync) {}
  void contributions_landed() override { sync_.landed(); }

 private:
  optim::GradSync& sync_;
};

/// Runs the executor's schedule on this rank's micro-batches; gradients are on their way when it returns, and
/// `optimizer.step` waits for them. Collective over the world.
pipeline::StepResult execute_pipeline(pipeline::Executor& executor, optim::ShardedOptimizer& optimizer,
                                      std::span<const nn::Batch> micro_batches, const nn::Random& random,
                                      const pipeline::RunOptions& options = {});

}  // namespace trireme::train
