#pragma once
// WholeTensors: the parameters of a rank as whole tensors, for update rules that need more than an
// element at a time. A parameter's elements lie on the tensor ranks that split it, and from ZeRO 1
// on each data rank has a shard of every local slice. It knows these places and moves numbers and
// elements between the ranks that hold them; it keeps no tensor.
//
// All calls are collective over the ranks of a pipeline stage and see parameters in the order of
// their names, so that ranks agree whatever they hold. Ranks get the same bits.
//
//   std::vector<std::vector<double>> squares = ...of own segments...;  whole.sum(squares);

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "trireme/dist/world.h"
#include "trireme/nn/param_store.h"

namespace trireme::optim {

class WholeTensors {
 public:
  /// A parameter and the elements of its local slice that each data rank steps; one range where
  /// they all step the whole slice.
  struct Place {
    const nn::Param* param;
    std::vector<layout::Range> shards;
  };

  /// Nothing to know: for rules that are local.
  WholeTensors() = default;
  /// `mesh` outlives it. Places may come in any order.
  WholeTensors(const dist::DeviceMesh& mesh, std::vector<Place> places);

  /// How many parameters there are, and which one is `param`; InternalError for a stranger.
  size_t size() const { return places_.size(); }
  size_t index(const nn::Param* param) const;
  const nn::Param* param(size_t index) const { return places_[index].param; }
  /// Where the rank's tensors are.
  c10::Device device() const { return mesh_ != nullptr ? mesh_->device : c10::kCPU; }

  /// For each parameter, numbers that add up over its elements: takes those of this rank's segments
  /// (each element once), gives those of the whole parameter. Sums run in
  /// double, data ranks first, in rank order. Collective: an all-reduce over data ranks where they
  /// have shards, one over tensor ranks.
  void sum(std::vector<std::vector<double>>& numbers) const;

  /// The whole parameter-like tensor, in its global shape, of which `local` is this rank's local
  /// slice, flat; where data ranks have shards, only the own one is read and the others are filled
  /// in. Collective over data ranks with shards and over tensor ranks that split it.
  at::Tensor gather(size_t index, at::Tensor local) const;
  /// This rank's local slice of a whole tensor, flat. Local.
  at::Tensor local_slice(size_t index, const at::Tensor& whole) const;

 private:
  bool sharded() const;

  const dist::DeviceMesh* mesh_ = nullptr;
  std::vector<Place> places_;
};

}  // namespace trireme::optim
