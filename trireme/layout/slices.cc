#include "trireme/layout/slices.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "trireme/base/error.h"

namespace trireme::layout {

namespace {

/// Appends a range, joined to the last one where they touch. Empty ranges leave no trace.
void append(std::vector<Range>& ranges, Range range) {
  if (range.size() == 0) return;
  if (!ranges.empty() && ranges.back().end == range.begin)
    ranges.back().end = range.end;
  else
    ranges.push_back(range);
}

/// The blocks of `spec` along `dim`: those of a fused weight, or the whole dimension as one.
std::vector<Range> blocks_along(const ParamSpec& spec, size_t dim) {
  if (spec.fused.empty()) return {{0, spec.shape[dim]}};
  std::vector<Range> blocks;
  int64_t begin = 0;
  for (int64_t size : spec.fused) {
    blocks.push_back({begin, begin + size});
    begin += size;
  }
  if (begin != spec.shape[dim])
    throw base::ConfigError(
        fmt::format("{}: the fused blocks {} do not add up to {}, the size of dimension {}",
                    spec.name, fmt::join(spec.fused, " + "), spec.shape[dim], dim));
  return blocks;
}

/// The part of `block` that `index` of `parts` holds, in whole granules.
Range part_of(const ParamSpec& spec, Range block, Axis axis, int parts, int index) {
  if (parts == 1) return block;
  const int64_t granules = block.size() / spec.granularity;
  if (granules * spec.granularity != block.size() || granules < parts)
    throw base::ConfigError(fmt::format(
        "{} {}: a block of {} in units of {} cannot be split over {} {} ranks; use an axis of at "
        "most {} ranks",
        spec.name, spec.shape, block.size(), spec.granularity, parts, name_of(axis),
        std::max<int64_t>(granules, 1)));
  Range part = split_range(granules, parts, index);
  return {block.begin + part.begin * spec.granularity, block.begin + part.end * spec.granularity};
}

size_t split_dim(const ParamSpec& spec, const Sbp& sbp) {
  const int rank = static_cast<int>(spec.shape.size());
  const int dim = sbp.dim < 0 ? sbp.dim + rank : sbp.dim;
  base::check(dim >= 0 && dim < rank, "{} of shape {} has no dimension {} to split", spec.name,
              spec.shape, sbp.dim);
  return static_cast<size_t>(dim);
}

bool is_whole(const std::vector<Range>& ranges, int64_t size) {
  return size == 0 || (ranges.size() == 1 && ranges[0] == Range{0, size});
}

std::vector<Run> runs_of(const Slice& slice, const Shape& global_shape) {
  std::vector<Run> runs;
  for_each_run(slice, global_shape, [&](Run run) { runs.push_back(run); });
  return runs;
}

}  // namespace

Shape Slice::shape() const {
  Shape shape;
  for (const auto& ranges : dims)
    shape.push_back(std::accumulate(ranges.begin(), ranges.end(), int64_t{0},
                                    [](int64_t sum, Range r) { return sum + r.size(); }));
  return shape;
}

int64_t Slice::count() const {
  return element_count(shape());
}

Slice whole(const Shape& shape) {
  Slice slice;
  for (int64_t size : shape) append(slice.dims.emplace_back(), {0, size});
  return slice;
}

Slice local_slice(const ParamSpec& spec, const Mesh& mesh, const Coord& coord) {
  Slice slice = whole(spec.shape);
  if (spec.layout.data_rank) {
    base::check(*spec.layout.data_rank < mesh.size(Axis::dp) && !slice.dims.empty(), "{} {} cannot lie on data rank {} of {}",
                spec.name, spec.shape, *spec.layout.data_rank, mesh.size(Axis::dp));
    if (coord.dp != *spec.layout.data_rank) {
      slice.dims.front().clear();
      return slice;
    }
  }
  const Sbp &dp = spec.layout.dp, &tp = spec.layout.tp;
  // The axis to which fused blocks and granularity belong comes last; where both axes split one
  // dimension, the outer one (dp) takes the first cut of each block.
  const Axis fine = tp.is_split() ? Axis::tp : Axis::dp;
  for (Axis axis : {Axis::dp, Axis::tp}) {
    const Sbp& sbp = axis == Axis::dp ? dp : tp;
    if (!sbp.is_split()) continue;
    const size_t dim = split_dim(spec, sbp);
    const bool same = dp.is_split() && tp.is_split() && split_dim(spec, dp) == split_dim(spec, tp);
    if (same && axis == Axis::dp) continue;
    slice.dims[dim].clear();
    if (axis == fine) {
      for (Range block : blocks_along(spec, dim)) {
        if (same) block = part_of(spec, block, Axis::dp, mesh.size(Axis::dp), coord.dp);
        append(slice.dims[dim], part_of(spec, block, axis, mesh.size(axis), coord[axis]));
      }
    } else {
      ParamSpec plain = spec;
      plain.granularity = 1;
      append(slice.dims[dim],
             part_of(plain, {0, spec.shape[dim]}, axis, mesh.size(axis), coord[axis]));
    }
  }
  return slice;
}

bool holds(const ParamSpec& spec, int stage) {
  return std::ranges::find(spec.layout.stages, stage) != spec.layout.stages.end();
}

bool holds(const ParamSpec& spec, const Coord& coord) {
  return holds(spec, coord.pp) && coord.dp == spec.layout.data_rank.value_or(coord.dp);
}

std::string data_place(const ParamLayout& layout) {
  return layout.data_rank ? fmt::format("rank {}", *layout.data_rank) : to_string(layout.dp);
}

void for_each_run(const Slice& slice, const Shape& global_shape,
                  const std::function<void(Run)>& visit) {
  base::check(slice.dims.size() == global_shape.size(), "a slice of {} dimensions of a shape of {}",
              slice.dims.size(), global_shape.size());
  if (slice.count() == 0) return;
  Shape stride(global_shape.size(), 1);
  for (size_t d = global_shape.size(); d-- > 1;) stride[d - 1] = stride[d] * global_shape[d];
  // Dimensions after `last` are whole: a range along `last` is one run.
  size_t last = global_shape.size();
  while (last > 0 && is_whole(slice.dims[last - 1], global_shape[last - 1])) --last;
  if (last == 0) return visit({0, 0, slice.count()});
  --last;

  int64_t local = 0;
  auto walk = [&](auto&& self, size_t dim, int64_t base) -> void {
    for (Range range : slice.dims[dim]) {
      if (dim == last) {
        const int64_t count = range.size() * stride[dim];
        visit({base + range.begin * stride[dim], local, count});
        local += count;
      } else {
        for (int64_t i = range.begin; i < range.end; ++i)
          self(self, dim + 1, base + i * stride[dim]);
      }
    }
  };
  walk(walk, 0, 0);
}

std::vector<Overlap> overlap(const Slice& a, const Slice& b, const Shape& global_shape) {
  const std::vector<Run> from = runs_of(a, global_shape), to = runs_of(b, global_shape);
  std::vector<Overlap> shared;
  for (size_t i = 0, j = 0; i < from.size() && j < to.size();) {
    const int64_t begin = std::max(from[i].global, to[j].global);
    const int64_t from_end = from[i].global + from[i].count, to_end = to[j].global + to[j].count;
    const int64_t end = std::min(from_end, to_end);
    if (begin < end)
      shared.push_back({from[i].local + begin - from[i].global, to[j].local + begin - to[j].global,
                        end - begin});
    from_end < to_end ? ++i : ++j;
  }
  return shared;
}

bool is_owner(const ParamSpec& spec, const Coord& coord) {
  return coord.pp == spec.layout.stages.front() &&
         (spec.layout.dp.is_split() || coord.dp == spec.layout.data_rank.value_or(0)) &&
         (spec.layout.tp.is_split() || coord.tp == 0);
}

}  // namespace trireme::layout
