#include "trireme/nn/tensor_part.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "trireme/nn/param_store.h"

namespace trireme::nn {

std::vector<TensorPart> parts_of(const ParamStore& store, const layout::Coord& coord) {
  layout::Coord any_data_rank = coord;
  any_data_rank.dp = 0;
  std::vector<TensorPart> parts;
  for (const Bucket& bucket : store.buckets()) {
    for (size_t i = 0; i < bucket.params.size(); ++i) {
      const Param& param = *bucket.params[i];
      TensorPart part{.name = param.spec.name,
                      .global_shape = param.spec.shape,
                      .slice = param.slice,
                      .flat = {0, param.slice.count()},
                      .data = param.data,
                      .owner = layout::is_owner(param.spec, coord)};
      if (bucket.data_shard.defined()) {
        const int64_t begin = bucket.offsets[i];
        part.flat = layout::intersect({begin, begin + part.flat.end}, bucket.shard);
        if (part.flat.size() == 0) continue;
        part.data = bucket.data_shard.narrow(0, part.flat.begin - bucket.shard.begin, part.flat.size());
        part.flat = {part.flat.begin - begin, part.flat.end - begin};
        part.owner = layout::is_owner(param.spec, any_data_rank);
      }
      parts.push_back(std::move(part));
    }
  }
  std::ranges::sort(parts, {}, &TensorPart::name);
  return parts;
}

}  // namespace trireme::nn
