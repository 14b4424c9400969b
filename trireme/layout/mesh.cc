#include "trireme/layout/mesh.h"

#include "trireme/base/error.h"

namespace trireme::layout {

std::string_view name_of(Axis axis) {
  constexpr std::array<std::string_view, 3> kNames = {"pp", "dp", "tp"};
  return kNames[static_cast<size_t>(axis)];
}

Mesh::Mesh(Coord sizes) : sizes_(sizes) {
  for (Axis axis : kAxes)
    if (sizes[axis] < 1)
      throw base::ConfigError(fmt::format("the size of axis {} is {}; it must be at least 1",
                                          name_of(axis), sizes[axis]));
}

int Mesh::rank(const Coord& coord) const {
  for (Axis axis : kAxes)
    base::check(coord[axis] >= 0 && coord[axis] < sizes_[axis],
                "coordinate {} on axis {} is outside of [0, {})", coord[axis], name_of(axis),
                sizes_[axis]);
  return (coord.pp * sizes_.dp + coord.dp) * sizes_.tp + coord.tp;
}

Coord Mesh::coord(int rank) const {
  base::check(rank >= 0 && rank < size(), "rank {} is outside of a mesh of {} ranks", rank, size());
  return {.pp = rank / (sizes_.dp * sizes_.tp),
          .dp = rank / sizes_.tp % sizes_.dp,
          .tp = rank % sizes_.tp};
}

std::vector<int> Mesh::ranks_along(Axis axis, const Coord& coord) const {
  std::vector<int> ranks;
  Coord at = coord;
  for (at[axis] = 0; at[axis] < sizes_[axis]; ++at[axis]) ranks.push_back(rank(at));
  return ranks;
}

std::vector<std::vector<int>> Mesh::groups(Axis axis) const {
  std::vector<std::vector<int>> groups;
  for (int r = 0; r < size(); ++r)
    if (Coord at = coord(r); at[axis] == 0) groups.push_back(ranks_along(axis, at));
  return groups;
}

}  // namespace trireme::layout
