#pragma once
// Sbp: how a tensor lies on one mesh axis, its value and its gradient apart (B broadcast, S split, P partial
// sum). The idea and the letters are OneFlow's; see docs/architecture.md section 3 for the table.

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::layout {

struct Sbp {
  enum class Kind : uint8_t { broadcast, split, partial };
  Kind value = Kind::broadcast, grad = Kind::broadcast;
  int dim = 0;  // of a split; counted from the end when negative

  /// (B, B): the same value and the whole gradient on every rank.
  static constexpr Sbp invariant() { return {Kind::broadcast, Kind::broadcast, 0}; }
  /// (B, P): the same value; each rank's gradient is its own contribution, yet to be summed.
  static constexpr Sbp replicated() { return {Kind::broadcast, Kind::partial, 0}; }
  /// (P, B): the value is the sum over ranks.
  static constexpr Sbp partial() { return {Kind::partial, Kind::broadcast, 0}; }
  /// (S, S): rank r holds the r-th part along `dim`.
  static constexpr Sbp split(int dim) { return {Kind::split, Kind::split, dim}; }

  bool is_split() const { return value == Kind::split; }
  bool is_replicated() const { return value == Kind::broadcast && grad == Kind::partial; }
  bool operator==(const Sbp&) const = default;
};

/// "invariant", "replicated", "partial" or "split(0)".
std::string to_string(const Sbp& sbp);
/// Inverse of to_string; FormatError otherwise.
Sbp sbp_from_string(const std::string& text);

/// Half-open range of indices.
struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

/// What is of both; within `a` also where nothing is left.
Range intersect(Range a, Range b);

/// The part of [0, size) that `index` of `parts` holds: the first size % parts hold one more.
Range split_range(int64_t size, int parts, int index);
/// Sizes of all parts, in order.
std::vector<int64_t> split_sizes(int64_t size, int parts);

}  // namespace trireme::layout
