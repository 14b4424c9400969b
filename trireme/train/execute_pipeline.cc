#include "trireme/train/execute_pipeline.h"

namespace trireme::train {

void OverlappedSync::before_layer(int layer, pipeline::Pass pass) {
  if (parameters_) parameters_->before_layer(layer, pass);
  if (pipeline::contributes(pass)) sync_.before(layer);
}

void OverlappedSync::after_layer(int layer, pipeline::Pass pass) {
  if (pipeline::contributes(pass)) sync_.after(layer);
  if (parameters_) parameters_->after_layer(layer, pass);
}

void OverlappedSync::end_step() {
  if (parameters_) parameters_->end_step();
}

pipeline::StepResult execute_pipeline(pipeline::Executor& executor, optim::ShardedOptimizer& optimizer,
                                      std::span<const nn::Batch> micro_batches, const nn::Random& random,
                                      const pipeline::RunOptions& options) {
  optimizer.sync().begin();
  return executor.run(micro_batches, random, nn::Mode::train, options);
}

}  // namespace trireme::train
