#pragma once
// ParamSpec: all that is known of a parameter before it has memory: identity, global shape, initial values
// and where it lies. From it follow the local slice, checkpoints, gradient sync, ZeRO and `inspect`.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/dtype.h"
#include "trireme/layout/mesh.h"
#include "trireme/layout/sbp.h"

namespace trireme::layout {

using Shape = std::vector<int64_t>;
int64_t element_count(const Shape& shape);

/// Initial values as data: drawn per global element, so they do not depend on the layout.
struct Init {
  enum class Kind : uint8_t { zeros, ones, normal, uniform, constant, waves, lengths } kind = Kind::zeros;
  double scale = 0;  // standard deviation of normal; bound of uniform in [-scale, scale); the constant
  int64_t columns = 0, features = 0;  // of waves; of lengths the dimension in `columns`
  static constexpr Init zeros() { return {Kind::zeros, 0}; }
  static constexpr Init ones() { return {Kind::ones, 0}; }
  static constexpr Init normal(double deviation) { return {Kind::normal, deviation}; }
  static constexpr Init uniform(double bound) { return {Kind::uniform, bound}; }
  static constexpr Init constant(double value) { return {Kind::constant, value}; }
  /// Places of an image's patches as sines and cosines of column and row: rows of `features` (a multiple of 4); the first
  /// is zero, for a token that is no patch, the others follow a grid of so many columns.
  static constexpr Init waves(int64_t columns, int64_t features) { return {Kind::waves, 0, columns, features}; }
  /// Of a magnitude (nn/low_rank.h): the lengths of its weight's slices along dimension `dim`. Zero until the weight is there.
  static constexpr Init lengths(int64_t dim) { return {Kind::lengths, 0, dim}; }
  bool operator==(const Init&) const = default;
};

/// A buffer is kept with the parameters and saved, but no gradient moves it: tables that stay as they are, statistics that
/// forward passes write (from values that all data ranks share, so that its copies stay equal), moving averages.
enum class ParamKind : uint8_t { parameter, buffer };

/// Where a tensor lies. Several stages: tied, replicated among its holders. `dp` is replicated for every
/// ordinary parameter. What is of an expert may lie on one data rank alone, which needs no sum over the others.
struct ParamLayout {
  std::vector<int> stages = {0};
  Sbp dp = Sbp::replicated();
  Sbp tp = Sbp::invariant();
  std::optional<int> data_rank = {};  // the only one that holds it; none: as `dp` says
};
/// "rank 1", or what to_string says of `dp`.
std::string data_place(const ParamLayout& layout);

struct ParamSpec {
  std::string name;  // Hugging Face's name
  Shape shape = {};  // global
  base::DType dtype = base::DType::f32;
  ParamKind kind = ParamKind::parameter;
  Init init = {};
  ParamLayout layout = {};
  // A fused weight splits per block: sizes of the blocks along the split dim (q|k|v). Empty: one block.
  std::vector<int64_t> fused = {};
  // Splits fall on multiples of this many rows (a head's size). 1: anywhere.
  int64_t granularity = 1;
  // Of a buffer that is a moving average: the parameter's name, whose initial values it has too. Empty: it is none.
  std::string average_of = {};
};

}  // namespace trireme::layout
