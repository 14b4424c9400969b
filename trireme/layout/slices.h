#pragma once
// Slices: which elements of a global tensor a rank holds, as ranges per dimension. Pure. Initialisation,
// loading, saving, resharding and `inspect` all use these functions and nothing else.

#include <functional>
#include <vector>

#include "trireme/layout/param_spec.h"

namespace trireme::layout {

/// Per dimension the ranges held, ascending; several where blocks of a fused weight are split each.
/// The local tensor is the ranges' concatenation along each dimension.
struct Slice {
  std::vector<std::vector<Range>> dims;
  Shape shape() const;  // of the local tensor
  int64_t count() const;
  bool operator==(const Slice&) const = default;
};

/// The whole tensor.
Slice whole(const Shape& shape);

/// The slice of `spec` at `coord`; nothing of what another data rank alone holds. Does not look at stages: whether a stage
/// holds the tensor at all is `holds`. Throws ConfigError when granularity or blocks cannot be split over the axis.
Slice local_slice(const ParamSpec& spec, const Mesh& mesh, const Coord& coord);
bool holds(const ParamSpec& spec, int stage);
/// Its stage, and its data rank.
bool holds(const ParamSpec& spec, const Coord& coord);

/// A run of elements contiguous both in the global tensor (row-major) and in the local one.
struct Run {
  int64_t global = 0, local = 0, count = 0;  // element offsets
};
/// Calls `visit` for the slice's runs, ascending in both offsets.
void for_each_run(const Slice& slice, const Shape& global_shape, const std::function<void(Run)>& visit);

/// The runs shared by two slices of one global tensor: `from` offsets into the first local tensor, `to` into
/// the second. What a reader needs to fill `b` from a file that holds `a`.
struct Overlap {
  int64_t from = 0, to = 0, count = 0;
};
std::vector<Overlap> overlap(const Slice& a, const Slice& b, const Shape& global_shape);

/// Does the element count for norms and is it written by this rank: coordinate 0 on every axis (and among
/// the holders of a tie) on which the tensor is not split; and the data rank that alone holds it.
bool is_owner(const ParamSpec& spec, const Coord& coord);

}  // namespace trireme::layout
