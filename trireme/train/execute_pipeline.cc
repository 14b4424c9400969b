#include "trireme/train/execute_pipeline.h"

namespace trireme::train {

pipeline::StepResult execute_pipeline(pipeline::Executor& executor, optim::ShardedOptimizer& optimizer,
                                      std::span<const nn::Batch> micro_batches, const nn::Random& random,
                                      const pipeline::RunOptions& options) {
  optimizer.sync().begin();
  return executor.run(micro_batches, random, nn::Mode::train, options);
}

}  // namespace trireme::train
