#pragma once
// ParamStore: this rank's parameters. It owns flat buffers (buckets); parameters and gradients are views of
// them. Parameters are plain tensors: gradients are written by the parameter functions (nn/parametric.h), never by
// autograd, and every contribution is counted.
//
// What data ranks split (Sharding) is kept as this rank's shard; then parameters or gradients are there as tensors
// only while a layer that uses them runs, and whoever runs layers sees to it (optim/param_gather.h, grad_sync.h).

#include <ATen/core/Tensor.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trireme/layout/slices.h"

namespace trireme::nn {

/// The type of a parameter's gradient and of whatever an optimizer keeps for it: fp64 of fp64, else
/// fp32, so that 16-bit parameters are summed and stepped in fp32.
at::ScalarType wide_type(base::DType dtype);

struct Param {
  layout::ParamSpec spec;
  layout::Slice slice;
  at::Tensor data;  // local part
  at::Tensor grad;  // same shape, of wide_type; none where it is frozen
  std::vector<int> layers = {};  // chain links of this rank that use it
  int64_t uses = 0;  // by the layers of this rank, per micro-batch
  int64_t contributions = 0;  // in this step
  bool grad_begun = false;  // the gradient's memory holds a contribution; the first one replaces what was there
  bool frozen = false;  // set before materialize: contributions count, but nobody computes them; a buffer always is
};

/// What data ranks split among themselves instead of each keeping it whole. One rank splits nothing.
struct Sharding {
  bool gradients = false, parameters = false;
  int ranks = 1, rank = 0;
};
/// The stages of ZeRO (Rajbhandari et al., 2020): 2 splits gradients, 3 parameters too. (1 splits the optimizer's
/// state, which is not the store's.)
Sharding zero_sharding(int stage, int ranks, int rank);

/// Parameters that are synchronised alike (kind, dtype, stages, replicated on tp or not, on all data ranks or on this one
/// alone, frozen or not): in reverse order of use, those of a tie by name, so that all its holders lay them out alike.
/// Frozen ones have no gradient. Where anything is sharded, parameters of a bucket are used by the same layers, but for
/// those of a tie. Buffers never are, nor what this data rank alone holds.
struct Bucket {
  std::vector<Param*> params;
  std::vector<int64_t> offsets;  // element offset of each parameter in the flat buffers
  std::vector<int> stages;       // of all its parameters
  bool replicated_on_tp = false;
  bool alone = false;            // on this data rank and no other: nothing is exchanged with them
  std::vector<int> layers = {};  // that use any of them
  int64_t size = 0;              // elements of a flat buffer; those between parameters (alignment) mean nothing
  at::Tensor data = {}, grad = {};              // flat and whole; none while only the shard is there
  layout::Range shard = {};                     // of the elements: this data rank's
  at::Tensor data_shard = {}, grad_shard = {};  // kept where it is sharded, else none

  bool has_grad() const { return grad.defined() || grad_shard.defined(); }
  /// Makes a flat buffer the parameters (the gradients, which have no contribution then); or none.
  void set_data(at::Tensor whole);
  void set_grad(at::Tensor whole);
};

class ParamStore {
 public:
  /// Makes flat memory of `count` elements of a type, zeroed.
  using Allocate = std::function<at::Tensor(int64_t count, at::ScalarType type)>;

  /// Before materialize: adds a parameter, or counts one more use of it, by chain link `layer`. The address is stable.
  Param* declare(const layout::ParamSpec& spec, layout::Slice slice, int layer = 0);
  /// Allocates the buckets (of about `bucket_bytes`) and draws the initial values from (seed, name, global
  /// index), one bucket after the other. Without `gradients` (evaluation, generation) only data is made.
  void materialize(uint64_t seed, bool gradients, const Allocate& allocate = {}, int64_t bucket_bytes = 25 << 20,
                   const Sharding& sharding = {}, c10::Device device = c10::kCPU);

  /// Ordered by name; once materialized without those that other data ranks hold.
  std::vector<Param*> params() const;
  Param* find(const std::string& name) const;  // or null
  std::vector<Bucket>& buckets() { return buckets_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  /// Those whose parameters chain link `layer` uses, in the store's order.
  std::vector<Bucket*> buckets_of(int layer);
  const Sharding& sharding() const { return sharding_; }
  /// Starts a step to which `micro_batches` will contribute: every gradient counts as zero. Its memory is as it was
  /// until the first contribution, which replaces it.
  void begin_step(int64_t micro_batches);
  /// One micro-batch fewer will contribute.
  void skip_micro_batch() { --micro_batches_; }
  /// Has the last contribution of this step landed in all of the bucket's parameters?
  bool complete(const Bucket& bucket) const;
  /// InternalError unless each parameter got exactly micro-batches x uses contributions; ConfigError for a trained one with none.
  void audit() const;
  /// Moves every moving average towards its parameter: average = keeps * average + (1 - keeps) * parameter. Local.
  void average(double keeps);

 private:
  std::deque<Param> storage_;  // order of declaration: order of use
  std::map<std::string, Param*> by_name_;
  std::vector<Bucket> buckets_;
  Sharding sharding_;
  int64_t micro_batches_ = 0;
};

/// Writes the initial values of a parameter's local slice into `values`, which has its elements and
/// any floating type. They are drawn in fp32 on the host, whatever the device, and rounded to that type.
void initialize(const Param& param, uint64_t seed, at::Tensor values);

}  // namespace trireme::nn
