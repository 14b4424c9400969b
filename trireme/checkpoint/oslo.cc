#include "trireme/checkpoint/oslo.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "trireme/base/error.h"
#include "trireme/checkpoint/manifest.h"

namespace trireme::checkpoint {

namespace fs = std::filesystem;

namespace {

// OSLO 3's name of the same.
std::string oslo3_file(int tp, int pp) {
  return fmt::format("pytorch_model_tp_{}_pp_{}_ep_0.bin", tp, pp);
}

}  // namespace

bool has_oslo_files(const std::string& folder) {
  return fs::exists(folder + "/" + oslo_file(0, 0)) || fs::exists(folder + "/" + oslo3_file(0, 0));
}

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

Index oslo_index(
    const std::string& folder, const layout::ModelDescription& description,
    const std::function<bool(const std::string& file, const std::string& name)>& holds) {
  const bool third = !fs::exists(folder + "/" + oslo_file(0, 0));
  auto file = [&](int tp, int pp) { return third ? oslo3_file(tp, pp) : oslo_file(tp, pp); };
  int tp_size = 1, stages = 1;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    int tp = 0, pp = 0, expert = 0;
    const char* pattern = third ? "pytorch_model_tp_%6d_pp_%6d_ep_%6d" : "pytorch_model_tp=%6d_pp=%6d";
    if (std::sscanf(name.c_str(), pattern, &tp, &pp, &expert) < 2 || tp < 0 || pp < 0) continue;
    if (expert > 0)
      throw base::FormatError(entry.path().string() + ": experts in files of their own are not supported");
    if (name != file(tp, pp)) continue;
    tp_size = std::max(tp_size, tp + 1);
    stages = std::max(stages, pp + 1);
  }
  for (int tp = 0; tp < tp_size; ++tp) {
    for (int pp = 0; pp < stages; ++pp) {
      if (fs::exists(folder + "/" + file(tp, pp))) continue;
      throw base::FormatError(fmt::format("{}/{}: the file is missing from a set of {} x {} files",
                                          folder, file(tp, pp), tp_size, stages));
    }
  }
  Index index;
  for (const layout::ParamSpec& spec : oslo_partition(description, stages).parameters) {
    std::vector<int> held;
    for (int pp = 0; pp < stages; ++pp)
      if (holds(file(0, pp), spec.name)) held.push_back(pp);
    const int stage = held.size() == 1 ? held.front() : spec.layout.stages.front();
    LogicalTensor tensor{spec.dtype, spec.shape, false, {}};
    int holders = spec.layout.tp.is_split() ? tp_size : 1;
    for (int tp = 0; tp < holders; ++tp) {
      layout::Slice slice = oslo_slice(spec, tp, tp_size);
      tensor.parts.push_back({file(tp, stage), slice, {0, slice.count()}});
    }
    index.emplace(spec.name, std::move(tensor));
  }
  return index;
}

}  // namespace trireme::checkpoint
