#pragma once
// ShardedOptimizer: what happens to the parameters of this rank between two steps of a run:
// gradients are made whole (GradSync), measured and clipped, parameters are updated, and from ZeRO
// 1 on each data rank updates the shard of every bucket whose optimizer state it holds and gathers
// the rest; ZeRO 3 leaves that to the layers' runs (ParamGather). ZeRO 0 and 1 give the same bits,
// 2 and 3 do.
//
// Of 16-bit parameters it keeps fp32 masters of the elements that it steps. A step moves the masters
// and rounds them to the parameters; a master is the parameter as far as checkpoints are concerned.
// On request (optim.ema) it keeps a moving average of what it steps, "<parameter>.ema" of the state.
//
//   optimizer.sync().begin();  ...backward...;  StepReport report = optimizer.step(lr);

#include <memory>

#include "trireme/nn/tensor_part.h"
#include "trireme/optim/clip.h"
#include "trireme/optim/grad_sync.h"
#include "trireme/optim/optimizers.h"

namespace trireme::optim {

struct StepOptions {
  double loss_scale = 1;         // gradients are those of the loss times this
  bool take_not_finite = false;  // else a gradient that is not finite leaves all as it is
};

struct StepReport {
  double grad_norm = 0;    // of the loss's own gradients, before clipping; NaN: not finite
  double clip_factor = 1;  // what gradients were multiplied by
  double wait_seconds = 0;  // for gradients that were still on their way
  bool finite = true;      // all elements of all ranks
};

/// Sums of squares over a set of parameters that move.
struct Squares {
  double gradients = 0, parameters = 0;
};

class ShardedOptimizer {
 public:
  /// Collective over the world. `mesh` and `store` (materialized with gradients, its parameters
  /// frozen as `options` says) outlive it. Masters start as the parameters are. `travel`: see
  /// GradSync.
  ShardedOptimizer(dist::World& world, const dist::DeviceMesh& mesh, nn::ParamStore& store,
                   const config::Optim& options, int zero_stage,
                   std::optional<base::DType> travel = {});

  GradSync& sync() { return sync_; }
  /// Finishes the sync and takes one step, on every rank or on none. Gradients stay as they were
  /// synchronised, but for the clipping of their values. Collective over the world.
  StepReport step(double lr, const StepOptions& options = {});
  /// The name of a parameter whose gradient is not finite, after a step that found one: the one that
  /// backward passes come to first. Collective over the world.
  std::string first_not_finite() const;

  /// Of `sets` sets of parameters, to one of which each name belongs: their gradients as they were last synchronised, and
  /// what they are now (masters where there are). Collective over the world.
  std::vector<Squares> squares(size_t sets, const std::function<size_t(const std::string& name)>& set_of) const;

  /// Steps taken: the only state that is no tensor.
  int64_t steps_taken() const { return steps_; }
  void set_steps_taken(int64_t steps) { steps_ = steps; }
  /// The masters that this rank holds, under the parameters' names: views to save or to fill with
  /// what the parameters were rounded from. None without 16-bit parameters. Local.
  std::vector<nn::TensorPart> masters() const;
  /// Lets moving averages start from the parameters (masters) as they are now. Local.
  void start_averages();
  /// Calls `work` while the parameters have the values of their averages; steps are not taken
  /// meanwhile. Collective over data ranks.
  void on_averages(const std::function<void()>& work);
  /// The state that this rank holds, "<parameter>.exp_avg" and so on, by name: views to save or to
  /// fill. Local.
  std::vector<nn::TensorPart> state() const;
  /// "exp_avg" and so on: what any rank may hold.
  std::vector<std::string> state_names() const;

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
    at::Tensor values;    // these elements in fp32 or fp64: a view of the bucket, or masters
    at::Tensor average;   // of them; none without optim.ema
    std::vector<ParamState> params;
    std::vector<Segment> segments;
  };
  void add(nn::Bucket& bucket);
  /// Zeroed memory for `count` elements of what steps need: in memory, or on the disk that optim.offload names.
  at::Tensor zeros(int64_t count, at::ScalarType type) const;
  at::Tensor copy_of(const at::Tensor& values, at::ScalarType type) const;
  /// The bucket's own elements that this rank steps.
  static at::Tensor stepped(const BucketState& entry);
  static bool has_masters(const BucketState& entry);
  void average(BucketState& entry);
  /// Starts the exchange of what data ranks stepped of a bucket.
  comm::Work share(BucketState& entry);
  /// What of a bucket's stepped elements is of a parameter.
  static at::Tensor of_param(const BucketState& entry, size_t index, const at::Tensor& flat);
  nn::TensorPart part(const ParamState& own, std::string name, at::Tensor data) const;
  void update(double lr, double grad_scale);

  const dist::DeviceMesh* mesh_;
  config::Optim options_;
  bool sharded_;
  GradSync sync_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<BucketState> buckets_;
  std::vector<Segment> counted_;  // for the norm
  std::vector<Segment> copies_;   // counted by another rank, which made its own
  std::vector<Segment> all_;      // of all buckets, for a collective rule
  int64_t steps_ = 0;
};

}  // namespace trireme::optim
