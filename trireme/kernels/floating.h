#pragma once
// The floating types that kernels take, and the type of their arithmetic.

#include <c10/core/ScalarType.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <type_traits>

namespace trireme::kernels {

/// fp64, fp32, bf16 or fp16?
inline bool is_floating(at::ScalarType type) {
  return type == at::kDouble || type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
}

/// 16-bit values are worked on in fp32.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Calls `body` with a value of the C++ type of `type`, one that is_floating.
template <class Body>
auto with_floating(at::ScalarType type, const Body& body) {
  switch (type) {
    case at::kDouble:
      return body(double{});
    case at::kFloat:
      return body(float{});
    case at::kBFloat16:
      return body(c10::BFloat16{});
    default:
      return body(c10::Half{});
  }
}

}  // namespace trireme::kernels
