#pragma once
// GradSync: the one rule that makes gradients whole. A gradient is summed over every axis on which
// its parameter is replicated: among the holders of a tie, over tensor ranks where it is replicated
// there, over data ranks always. ZeRO 0 sums the whole bucket on every data rank (all-reduce); from
// ZeRO 1 on each keeps its shard (reduce-scatter). Both add in the same order, so a shard holds the
// same bits as the whole.
//
// Gradients arrive scaled (a mean over the counted items of the global batch), so every sum is a
// plain sum.
//
//   GradSync sync(world, mesh, store, zero_stage);
//   sync.begin(micro_batches);  ... sync.landed() after each layer's backward ...;  sync.finish();

#include <vector>

#include "trireme/dist/world.h"
#include "trireme/nn/param_store.h"

namespace trireme::optim {

class GradSync {
 public:
  /// Collective over the world: makes the groups of tied and replicated parameters. `mesh` and
  /// `store` outlive it.
  GradSync(dist::World& world, const dist::DeviceMesh& mesh, nn::ParamStore& store, int zero_stage);

  /// Starts a step of `micro_batches`. Local.
  void begin(int64_t micro_batches);
  /// Starts the exchange of every bucket whose last contribution has landed, where its group allows
  /// an order that all its ranks share. Collective over the tensor and data ranks of a stage, which
  /// see contributions in one order.
  void landed();
  /// Starts what has not been started and waits for all. Collective. Afterwards each bucket's
  /// gradient is whole on shard(bucket), and everywhere with ZeRO 0.
  void finish();
  /// Makes gradients whole everywhere with ZeRO 1 too (for inspection). Collective over data ranks.
  void gather();

  /// The part of a bucket's flat buffers that this data rank owns.
  layout::Range shard(const nn::Bucket& bucket) const;

 private:
  enum class Phase : uint8_t { waiting, first_sum, data_sum };
  struct Exchange {
    nn::Bucket* bucket;
    comm::Comm
        first;  // holders of the tie x tensor ranks; of one where the data ranks are all there is
    Phase phase = Phase::waiting;
    comm::Work work;
  };
  void start_first(Exchange& exchange);
  void start_data(Exchange& exchange);

  const dist::DeviceMesh* mesh_;
  bool scatter_;
  int64_t micro_batches_ = 0;
  std::vector<Exchange> exchanges_;  // in the order of buckets
};

}  // namespace trireme::optim
