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
//   sync.begin();  ... sync.landed() whenever contributions have ...;  sync.finish();

#include <vector>

#include "trireme/dist/world.h"
#include "trireme/nn/param_store.h"

namespace trireme::optim {

class GradSync {
 public:
  /// Collective over the world: makes the groups of tied and replicated parameters. `mesh` and
  /// `store` outlive it.
  GradSync(dist::World& world, const dist::DeviceMesh& mesh, nn::ParamStore& store, int zero_stage);

  /// Starts a step. Local.
  void begin();
  /// Starts the exchange of the buckets whose last contribution has landed, in the store's order up
  /// to the first that is not complete: so the ranks of a group start them in one order, whenever
  /// they call and whatever they hold. Tied buckets wait for finish().
  void landed();
  /// Starts what has not been started and waits for all. Collective. Afterwards each bucket's
  /// gradient is whole on shard(bucket), and everywhere with ZeRO 0.
  void finish();
  /// Makes gradients whole everywhere with ZeRO 1 too (for inspection). Collective over data ranks.
  void gather();

  /// The part of a bucket's flat buffers that this data rank owns.
  layout::Range shard(const nn::Bucket& bucket) const;

 private:
  enum class Phase : uint8_t { first_sum, data_sum };
  struct Exchange {
    nn::Bucket* bucket;
    comm::Comm first;  // the tie's holders x tensor ranks that replicate; often of one
    Phase phase = Phase::first_sum;
    comm::Work work;
  };
  static bool tied(const Exchange& exchange) { return exchange.bucket->stages.size() > 1; }
  void start(Exchange& exchange);
  void start_first(Exchange& exchange);
  void start_data(Exchange& exchange);

  const dist::DeviceMesh* mesh_;
  const nn::ParamStore* store_;
  bool scatter_;
  std::vector<Exchange> exchanges_;  // in the store's order
  size_t next_ = 0;                  // the first that has not been started
  bool finished_ = true;
};

}  // namespace trireme::optim
