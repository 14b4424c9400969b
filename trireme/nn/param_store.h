#pragma once
// ParamStore: this rank's parameters. It owns flat buffers (buckets); parameters and gradients are views of
// them. Parameters are plain tensors: gradients are written by the parameter functions (nn/parametric.h), never by
// autograd, and every contribution is counted.

#include <ATen/core/Tensor.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trireme/layout/slices.h"

namespace trireme::nn {

struct Param {
  layout::ParamSpec spec;
  layout::Slice slice;
  at::Tensor data;  // local part
  at::Tensor grad;  // same shape; fp32, or fp64 where the parameter is; none where it is frozen
  int64_t uses = 0;  // by the layers of this rank, per micro-batch
  int64_t contributions = 0;  // in this step
  bool frozen = false;  // set before materialize: contributions count, but nobody computes them
};

/// Parameters that are synchronised alike (dtype, stages, replicated on tp or not, frozen or not): in reverse order of
/// use, those of a tie by name, so that all its holders lay them out alike. Frozen ones have no gradient.
struct Bucket {
  std::vector<Param*> params;
  std::vector<int64_t> offsets;  // element offset of each parameter in the flat buffers
  at::Tensor data, grad;         // flat; gaps between parameters (alignment) stay zero
  std::vector<int> stages;       // of all its parameters
  bool replicated_on_tp = false;
};

class ParamStore {
 public:
  /// Makes flat memory of `count` elements of a type, zeroed.
  using Allocate = std::function<at::Tensor(int64_t count, at::ScalarType type)>;

  /// Before materialize: adds a parameter, or counts one more use of it. The address is stable.
  Param* declare(const layout::ParamSpec& spec, layout::Slice slice);
  /// Allocates the buckets (of about `bucket_bytes`) and draws the initial values from (seed, name, global
  /// index). Without `gradients` (evaluation, generation) only data is made.
  void materialize(uint64_t seed, bool gradients, const Allocate& allocate = {}, int64_t bucket_bytes = 25 << 20);

  /// Ordered by name.
  std::vector<Param*> params() const;
  Param* find(const std::string& name) const;  // or null
  std::vector<Bucket>& buckets() { return buckets_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  /// Starts a step to which `micro_batches` will contribute: every gradient counts as zero. Its memory is as it was
  /// until the first contribution, which replaces it.
  void begin_step(int64_t micro_batches);
  /// One micro-batch fewer will contribute.
  void skip_micro_batch() { --micro_batches_; }
  /// Has the last contribution of this step landed in all of the bucket's parameters?
  bool complete(const Bucket& bucket) const;
  /// InternalError unless every parameter got exactly micro-batches x uses contributions.
  void audit() const;

 private:
  std::deque<Param> storage_;  // order of declaration: order of use
  std::map<std::string, Param*> by_name_;
  std::vector<Bucket> buckets_;
  int64_t micro_batches_ = 0;
};

/// Writes the initial values of a parameter's local slice.
void initialize(Param& param, uint64_t seed);

}  // namespace trireme::nn
