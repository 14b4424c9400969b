#pragma once
// ParamSpec: all that is known of a parameter before it has memory: identity, global shape, initial values
// and where it lies. From it follow the local slice, checkpoints, gradient sync, ZeRO and `inspect`.

#include <cstdint>
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
  enum class Kind : uint8_t { zeros, ones, normal, uniform, constant } kind = Kind::zeros;
  double scale = 0;  // standard deviation of normal; bound of uniform in [-scale, scale); the constant
  static constexpr Init zeros() { return {Kind::zeros, 0}; }
  static constexpr Init ones() { return {Kind::ones, 0}; }
  static constexpr Init normal(double deviation) { return {Kind::normal, deviation}; }
  static constexpr Init uniform(double bound) { return {Kind::uniform, bound}; }
  static constexpr Init constant(double value) { return {Kind::constant, value}; }
  bool operator==(const Init&) const = default;
};

enum class ParamKind : uint8_t { parameter, buffer };

/// Where a tensor lies. Several stages: tied, replicated among its holders. `dp` is replicated for every
/// ordinary parameter; experts placed on dp split it.
struct ParamLayout {
  std::vector<int> stages = {0};
  Sbp dp = Sbp::replicated();
  Sbp tp = Sbp::invariant();
};

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
};

}  // namespace trireme::layout
