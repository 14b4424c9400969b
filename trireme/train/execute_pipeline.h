#pragma once
// execute_pipeline: one step's forward and backward passes with their gradient exchange. The schedule runs without
// waiting for gradients; a bucket's exchange starts as soon as its last contribution has landed, inside the
// pipeline's cool-down.

#include "trireme/optim/sharded_optimizer.h"
#include "trireme/pipeline/executor.h"

namespace trireme::train {

/// Parameters and gradients around each layer: tells the gradient exchange how far a backward pass has come, and has
/// sharded parameters gathered.
class OverlappedSync : public pipeline::StepObserver {
 public:
  /// `parameters` may be null. Both outlive it.
  explicit OverlappedSync(optim::GradSync& sync, pipeline::StepObserver* parameters = nullptr)
      : sync_(sync), parameters_(parameters) {}
  void before_layer(int layer, pipeline::Pass pass) override;
  void after_layer(int layer, pipeline::Pass pass) override;
  void end_step() override;

 private:
  optim::GradSync& sync_;
  pipeline::StepObserver* parameters_;
};

/// Runs the executor's schedule on this rank's micro-batches; gradients are on their way when it returns, and
/// `optimizer.step` waits for them. Collective over the world.
pipeline::StepResult execute_pipeline(pipeline::Executor& executor, optim::ShardedOptimizer& optimizer,
                                      std::span<const nn::Batch> micro_batches, const nn::Random& random,
                                      const pipeline::RunOptions& options = {});

}  // namespace trireme::train
