#include "trireme/nn/tensor_part.h"

#include "trireme/nn/param_store.h"

namespace trireme::nn {

std::vector<TensorPart> parts_of(const ParamStore& store, const layout::Coord& coord) {
  std::vector<TensorPart> parts;
  for (const Param* param : store.params()) {
    parts.push_back({param->spec.name,
                     param->spec.shape,
                     param->slice,
                     {0, param->slice.count()},
                     param->data,
                     layout::is_owner(param->spec, coord)});
  }
  return parts;
}

}  // namespace trireme::nn
