#pragma once
// TensorPart: what one rank holds of a named logical tensor. Checkpoints are made of these:
// parameters, and what the optimizer keeps for each (`<parameter>.exp_avg`), are all described
// alike, so that any layout can be saved and loaded into any other.
//
// The rank holds the elements [flat.begin, flat.end) of its local slice (all of them unless ZeRO
// splits the slice over dp). Over a job, the parts with `owner` set cover each element of the
// tensor exactly once.

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "trireme/layout/slices.h"

namespace trireme::nn {

class ParamStore;

struct TensorPart {
  std::string name;
  layout::Shape global_shape;
  layout::Slice slice;  // of the global tensor
  layout::Range flat;   // of the slice's elements, row-major
  at::Tensor data;      // contiguous, flat.size() elements in any shape; loading fills it in place
  bool owner = false;   // this rank saves it
};

/// The parameters as parts, ordered by name; `data` are views of the store's memory. Of sharded ones the part that
/// this data rank has, if any. Local.
std::vector<TensorPart> parts_of(const ParamStore& store, const layout::Coord& coord);

}  // namespace trireme::nn
