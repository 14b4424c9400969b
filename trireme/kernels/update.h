#pragma once
// Element-wise optimizer updates and gradient norms on flat memory, vectorised with run-time
// dispatch. One pass reads and writes each array once. What happens to an element does not depend
// on where it lies in its piece, so a parameter that is cut into shards takes the very same bits.
// Where `device` is not the CPU, the arrays are in its memory and expressions.h does the work.

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <span>

namespace trireme::kernels {

/// Contiguous elements (fp32 or fp64, all arrays alike) that are updated by the same rule.
struct Piece {
  void* param = nullptr;
  const void* grad = nullptr;
  void* state[2] = {nullptr, nullptr};  // adam: exp_avg, exp_avg_sq; sgd, lion: momentum or none
  int64_t count = 0;
  double weight_decay = 0;
  double lr_scale = 1;
};

/// Adam with decoupled weight decay (AdamW: Loshchilov and Hutter, 2019), or with the decay added to
/// the gradient (Kingma and Ba, 2015). `step` counts from 1. Gradients are multiplied by
/// `grad_scale` as they are read. Local.
struct Adam {
  double lr, beta1, beta2, eps;
  int64_t step;
  bool decoupled = true;
};
void adam(std::span<const Piece> pieces, at::ScalarType type, const Adam& rule, double grad_scale,
          c10::Device device = c10::kCPU);

/// g += weight_decay * p; buffer = momentum * buffer + g; p -= lr * buffer, or with Nesterov's
/// momentum p -= lr * (g + momentum * buffer). Local.
struct Sgd {
  double lr, momentum;
  bool nesterov = false;
};
void sgd(std::span<const Piece> pieces, at::ScalarType type, const Sgd& rule, double grad_scale,
         c10::Device device = c10::kCPU);

/// p -= lr * (sign(beta1 * m + (1 - beta1) * g) + weight_decay * p); m = beta2 * m + (1 - beta2) * g
/// (Chen et al., 2023). Local.
struct Lion {
  double lr, beta1, beta2;
};
void lion(std::span<const Piece> pieces, at::ScalarType type, const Lion& rule, double grad_scale,
          c10::Device device = c10::kCPU);

/// average = decay * average + (1 - decay) * value, with `param` the average and `grad` the value.
/// Local.
void average(std::span<const Piece> pieces, at::ScalarType type, double decay,
             c10::Device device = c10::kCPU);

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
NormTerm norm_term(std::span<const Piece> pieces, at::ScalarType type, Norm kind,
                   c10::Device device = c10::kCPU);

}  // namespace trireme::kernels
