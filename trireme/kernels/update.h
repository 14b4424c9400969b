#pragma once
// Element-wise optimizer updates and gradient norms on flat memory, vectorised with run-time
// dispatch. One pass reads and writes each array once. What happens to an element does not depend
// on where it lies in its piece, so a parameter that is cut into shards takes the very same bits.

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <span>

namespace trireme::kernels {

/// Contiguous elements (fp32 or fp64, all arrays alike) that are updated by the same rule.
struct Piece {
  void* param = nullptr;
  const void* grad = nullptr;
  void* state[2] = {nullptr, nullptr};  // adamw: exp_avg, exp_avg_sq; sgd: momentum_buffer or none
  int64_t count = 0;
  double weight_decay = 0;
};

/// Decoupled weight decay (Loshchilov and Hutter, 2019). `step` counts from 1. Gradients are
/// multiplied by `grad_scale` as they are read. Local.
struct AdamW {
  double lr, beta1, beta2, eps;
  int64_t step;
};
void adamw(std::span<const Piece> pieces, at::ScalarType type, const AdamW& rule,
           double grad_scale);

/// g += weight_decay * p; buffer = momentum * buffer + g; p -= lr * buffer. Local.
struct Sgd {
  double lr, momentum;
};
void sgd(std::span<const Piece> pieces, at::ScalarType type, const Sgd& rule, double grad_scale);

/// What a norm is made of: the sum of magnitudes, the sum of squares or the largest magnitude.
enum class Norm : uint8_t { absolute, squares, largest };
struct NormTerm {
  double value = 0;
  bool finite = true;  // are all elements finite? `value` means nothing where one is not
  void add(const NormTerm& other, Norm kind) {
    value = kind == Norm::largest ? std::max(value, other.value) : value + other.value;
    finite = finite && other.finite;
  }
};
/// Over all elements, in double and in an order that does not depend on the number of threads.
/// Local.
NormTerm norm_term(std::span<const Piece> pieces, at::ScalarType type, Norm kind);

}  // namespace trireme::kernels
