#pragma once
// ParamGather: the parameters of ZeRO 3 around the layers that use them. Data ranks keep shards; a
// layer's buckets are gathered before it runs, while those of the next one are on their way, and
// freed when the layers that run no longer need them: two layers are whole at a time. It knows
// parameters alone: gradients are GradSync's.
//
// Gathered parameters are copies: a change of shards reaches them with the next gather, so nothing
// may change while a step runs (end_step frees all).
//
//   ParamGather gather(mesh, model->store);  Executor executor(..., &gather);

#include <map>

#include "trireme/dist/world.h"
#include "trireme/nn/param_store.h"
#include "trireme/pipeline/observer.h"

namespace trireme::optim {

class ParamGather : public pipeline::StepObserver {
 public:
  /// `mesh` and `store` (materialized) outlive it. Not collective. Without sharded parameters it
  /// does nothing.
  ParamGather(const dist::DeviceMesh& mesh, nn::ParamStore& store);

  /// Collective over data ranks, which must run the same layers in the same order.
  void before_layer(int layer, pipeline::Pass pass) override;
  void end_step() override;
  /// Makes all parameters whole (for inspection), until the next call of the others. Collective
  /// over data ranks.
  void gather_all();

 private:
  struct Flight {
    at::Tensor whole;
    comm::Work work;
  };
  void start(nn::Bucket& bucket);
  void finish(nn::Bucket& bucket);
  void free(nn::Bucket& bucket);

  const dist::DeviceMesh* mesh_;
  nn::ParamStore* store_;
  std::map<nn::Bucket*, Flight> flights_;
};

}  // namespace trireme::optim
