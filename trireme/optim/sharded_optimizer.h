#pragma once
// ShardedOptimizer: what happens to the parameters of this rank between two steps of a run:
// gradients are made whole (GradSync), measured and clipped, parameters are updated, and from ZeRO
// 1 on each data rank updates the shard of every bucket whose optimizer state it holds and gathers
// the rest; ZeRO 3 leaves that to the layers' runs (ParamGather). ZeRO 0 and 1 give the same bits,
// 2 and 3 do.
//
//   optimizer.sync().begin();  ...backward...;  StepReport report = optimizer.step(lr);

#include <memory>

#include "trireme/nn/tensor_part.h"
#include "trireme/optim/clip.h"
#include "trireme/optim/grad_sync.h"
#include "trireme/optim/optimizers.h"

namespace trireme::optim {

struct StepReport {
  double grad_norm = 0;    // before clipping
  double clip_factor = 1;  // what gradients were multiplied by
  double wait_seconds = 0;  // for gradients that were still on their way
};

class ShardedOptimizer {
 public:
  /// Collective over the world. `mesh` and `store` (materialized with gradients, fp32 or fp64, its
  /// parameters frozen as `options` says) outlive it.
  ShardedOptimizer(dist::World& world, const dist::DeviceMesh& mesh, nn::ParamStore& store,
                   const config::Optim& options, int zero_stage);

  GradSync& sync() { return sync_; }
  /// Finishes the sync and takes one step. Gradients stay as they were synchronised, but for the
  /// clipping of their values. Collective over the world.
  StepReport step(double lr);

  /// Steps taken: the only state that is no tensor.
  int64_t steps_taken() const { return steps_; }
  void set_steps_taken(int64_t steps) { steps_ = steps; }
  /// The state that this rank holds, "<parameter>.exp_avg" and so on, by name: views to save or to
  /// fill. Local.
  std::vector<nn::TensorPart> state() const;
  /// "exp_avg" and so on: what any rank may hold.
  std::vector<std::string> state_names() const { return optimizer_->state_names(); }

 private:
  struct ParamState {
    const nn::Param* param;
    layout::Range flat;  // elements of its local slice that this rank steps
    std::vector<State> kinds;
    std::vector<at::Tensor> tensors;
  };
  struct BucketState {
    nn::Bucket* bucket;
    layout::Range range;  // of the flat buffers: what this rank steps
    std::vector<ParamState> params;
    std::vector<Segment> segments;
  };
  void add(nn::Bucket& bucket);
  void update(double lr, double grad_scale);

  const dist::DeviceMesh* mesh_;
  config::Optim options_;
  bool sharded_;
  GradSync sync_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<BucketState> buckets_;
  std::vector<Segment> counted_;  // for the norm
  std::vector<Segment> all_;      // of all buckets, for a collective rule
  int64_t steps_ = 0;
};

}  // namespace trireme::optim
