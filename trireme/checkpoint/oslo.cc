#include "trireme/checkpoint/oslo.h"

#include <algorithm>
#include <filesystem>

#include "trireme/base/error.h"
#include "trireme/checkpoint/manifest.h"

namespace trireme::checkpoint {

namespace fs = std::filesystem;

std::string oslo_file(int tp, int pp) {
  return fmt::format("pytorch_model_tp={}_pp={}.bin", tp, pp);
}

layout::ModelDescription oslo_partition(const layout::ModelDescription& description, int stages) {
  int blocks =
      static_cast<int>(std::ranges::count_if(description.layers, &layout::LayerDescription::block));
  if (stages < 1 || stages > blocks) {
    throw base::ConfigError(
        fmt::format("{} stages for {} layers; give 1 to {}", stages, blocks, blocks));
  }
  std::vector<int> counts(static_cast<size_t>(stages), blocks / stages);
  counts.back() += blocks % stages;
  return retarget(description, layout::Mesh({.pp = stages, .dp = 1, .tp = 1}), counts);
}

layout::Slice oslo_slice(const layout::ParamSpec& spec, int tp, int size) {
  layout::Slice slice = layout::whole(spec.shape);
  const layout::Sbp& place = spec.layout.tp;
  if (!place.is_split() || size == 1) return slice;
  int dim = place.dim < 0 ? place.dim + static_cast<int>(spec.shape.size()) : place.dim;
  int64_t length = spec.shape.at(static_cast<size_t>(dim)), start = 0;
  auto& ranges = slice.dims[static_cast<size_t>(dim)];
  ranges.clear();
  for (int64_t block : spec.fused.empty() ? std::vector<int64_t>{length} : spec.fused) {
    int64_t chunk = (block + size - 1) / size, begin = chunk * tp;
    if (begin >= block) {
      throw base::ConfigError(
          fmt::format("{}: {} rows cannot be cut into {} parts of {}; use fewer "
                      "tensor-parallel ranks",
                      spec.name, block, size, chunk));
    }
    ranges.push_back({start + begin, start + std::min(block, begin + chunk)});
    start += block;
  }
  return slice;
}

Index oslo_index(const std::string& folder, const layout::ModelDescription& description) {
  auto exists = [&](int tp, int pp) { return fs::exists(folder + "/" + oslo_file(tp, pp)); };
  int tp_size = 1, stages = 1;
  while (exists(tp_size, 0)) ++tp_size;
  while (exists(0, stages)) ++stages;
  for (int tp = 0; tp < tp_size; ++tp) {
    for (int pp = 0; pp < stages; ++pp) {
      if (exists(tp, pp)) continue;
      throw base::FormatError(fmt::format("{}/{}: the file is missing from a set of {} x {} files",
                                          folder, oslo_file(tp, pp), tp_size, stages));
    }
  }
  Index index;
  for (const layout::ParamSpec& spec : oslo_partition(description, stages).parameters) {
    LogicalTensor tensor{spec.dtype, spec.shape, false, {}};
    int holders = spec.layout.tp.is_split() ? tp_size : 1;
    for (int tp = 0; tp < holders; ++tp) {
      layout::Slice slice = oslo_slice(spec, tp, tp_size);
      tensor.parts.push_back(
          {oslo_file(tp, spec.layout.stages.front()), slice, {0, slice.count()}});
    }
    index.emplace(spec.name, std::move(tensor));
  }
  return index;
}

}  // namespace trireme::checkpoint
