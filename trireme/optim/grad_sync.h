#pragma once
// GradSync: the one rule that makes gradients whole. A gradient is summed over every axis on which
// its parameter is replicated: among the holders of a tie, over tensor ranks where it is replicated
// there, over data ranks unless this one alone holds it. ZeRO 0 sums the whole bucket on every data rank (all-reduce); with
// ZeRO 1 each keeps its shard (reduce-scatter). Both add in the same order, so a shard holds the
// same bits as the whole.
//
// From ZeRO 2 on a whole gradient is there only while a layer contributes to it: then it is
// reduce-scattered over data ranks and added to the shard, once a micro-batch (and layer that uses
// it), and what is left to sum is summed on shards at the end. Sums then run in another order, but
// for parameters with one contribution a step that data ranks alone replicate.
//
// Gradients arrive scaled (a mean over the counted items of the global batch), so every sum is a
// plain sum.
//
//   GradSync sync(world, mesh, store, zero_stage);
//   sync.begin();  ... sync.before(layer); ...backward...; sync.after(layer);  sync.finish();

#include <deque>
#include <optional>
#include <vector>

#include "trireme/dist/world.h"
#include "trireme/nn/param_store.h"

namespace trireme::optim {

class GradSync {
 public:
  /// Collective over the world: makes the groups of tied and replicated parameters. `mesh` and
  /// `store`, materialized with the sharding of the same stage, outlive it. Between data ranks
  /// gradients travel as `travel` where that is given: rounded to it, summed in fp32 and rounded once
  /// more.
  GradSync(dist::World& world, const dist::DeviceMesh& mesh, nn::ParamStore& store, int zero_stage,
           std::optional<base::DType> travel = {});

  /// Starts a step. Local.
  void begin();
  /// Chain link `layer` is about to contribute: its gradients get memory. Local.
  void before(int layer);
  /// Its contributions have landed. Whole gradients: landed(). Sharded ones: starts their exchange,
  /// so all data ranks must call it for the same layers in the same order.
  void after(int layer);
  /// Starts the exchange of the whole buckets whose last contribution has landed, in the store's
  /// order up to the first that is not complete: so the ranks of a group start them in one order,
  /// whenever they call and whatever they hold. Tied buckets wait for finish().
  void landed();
  /// Starts what has not been started and waits for all. Collective. Afterwards each bucket's
  /// gradient is whole on shard(bucket), and everywhere with ZeRO 0.
  void finish();
  /// Makes gradients whole everywhere with the other stages too (for inspection), until the next
  /// begin(). Collective over data ranks.
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
    at::Tensor sent = {};    // the gradient as it travels between data ranks, where that is a copy
    bool scattered = false;  // the shard holds something of this step
  };
  // Whole gradients on their way to the shard. At most those of one layer, while the next one runs.
  struct Scatter {
    Exchange* exchange;
    at::Tensor whole, sum;  // sum: this rank's part; the shard itself where that can be
    comm::Work work;
    bool first;  // nothing of this step is in the shard yet
  };
  static bool tied(const Exchange& exchange) { return exchange.bucket->stages.size() > 1; }
  std::vector<Exchange*> ties();
  void start(Exchange& exchange);
  void start_first(Exchange& exchange, at::Tensor& grad);
  void start_data(Exchange& exchange);
  void scatter(Exchange& exchange);
  void take_scattered();
  /// The gradient as it travels between data ranks: itself, or a copy.
  at::Tensor travelling(const at::Tensor& grad) const;
  void finish_shards();
  /// The sums of what this data rank alone holds: with the others there is none.
  void start_alone();

  const dist::DeviceMesh* mesh_;
  nn::ParamStore* store_;
  bool scatter_, sharded_;
  std::optional<base::DType> travel_;
  std::vector<Exchange> exchanges_;  // in the store's order
  std::vector<Exchange> alone_;      // of this data rank; the others have as many of another size, or none
  std::deque<Scatter> scatters_;
  size_t next_ = 0;  // the first that has not been started
  bool finished_ = true;
};

}  // namespace trireme::optim
