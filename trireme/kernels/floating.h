#pragma once
// The floating types that kernels take, and the type of their arithmetic.

#include <c10/core/ScalarType.h>

#include <type_traits>

namespace trireme::kernels {

/// fp64, fp32, bf16 or fp16?
inline bool is_floating(at::ScalarType type) {
  return type == at::kDouble || type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
}

/// 16-bit values are worked on in fp32.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

}  // namespace trireme::kernels
