#pragma once
// Mesh: the ranks as a grid of named axes, pipeline outermost, tensor innermost. Pure; knows no process.
//
//   Mesh mesh{{.pp = 2, .dp = 2, .tp = 2}};  mesh.rank({.pp = 1, .dp = 0, .tp = 1}) == 5

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::layout {

enum class Axis : uint8_t { pp, dp, tp };
inline constexpr std::array<Axis, 3> kAxes = {Axis::pp, Axis::dp, Axis::tp};
std::string_view name_of(Axis axis);

/// A place on the mesh, or the mesh's sizes.
struct Coord {
  int pp = 0, dp = 0, tp = 0;
  int& operator[](Axis axis) { return axis == Axis::pp ? pp : axis == Axis::dp ? dp : tp; }
  int operator[](Axis axis) const { return axis == Axis::pp ? pp : axis == Axis::dp ? dp : tp; }
  bool operator==(const Coord&) const = default;
};

class Mesh {
 public:
  Mesh() = default;
  /// Throws ConfigError when a size is below 1.
  explicit Mesh(Coord sizes);
  int size() const { return sizes_.pp * sizes_.dp * sizes_.tp; }
  int size(Axis axis) const { return sizes_[axis]; }
  const Coord& sizes() const { return sizes_; }
  /// rank = pp * (dp_size * tp_size) + dp * tp_size + tp
  int rank(const Coord& coord) const;
  Coord coord(int rank) const;
  /// The ranks that differ from `coord` on `axis` only, in axis order (`coord` among them).
  std::vector<int> ranks_along(Axis axis, const Coord& coord) const;
  /// All groups of an axis, ordered by their first rank.
  std::vector<std::vector<int>> groups(Axis axis) const;
  bool operator==(const Mesh&) const = default;

 private:
  Coord sizes_{1, 1, 1};
};

}  // namespace trireme::layout
