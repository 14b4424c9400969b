#pragma once
// What the kernels compute, as ATen expressions: for tensors on devices that the kernels do not know. Masks have the
// kernels' bits, since they come of the same keys and coordinates; other numbers agree to the rounding of their type.
// They also run on the CPU, where tests compare them with the kernels.

#include "trireme/kernels/cross_entropy.h"
#include "trireme/kernels/dropout.h"
#include "trireme/kernels/gelu.h"
#include "trireme/kernels/update.h"

namespace trireme::kernels::expressions {

/// Philox4x32-10 (base/philox.h): its four words, as int64 below 2^32, for counters that are int64 below 2^32 too and
/// broadcast. Local.
std::array<at::Tensor, 4> philox(uint64_t key, std::array<at::Tensor, 4> counter);

// As the functions of these names in the headers above.
void dropout(const at::Tensor& x, at::Tensor& out, double p, const MaskCoordinates& where);
at::Tensor gelu_tanh(const at::Tensor& x);
at::Tensor gelu_tanh_backward(const at::Tensor& x, const at::Tensor& gradient);
at::Tensor softmax_terms(const at::Tensor& logits);
void softmax_gradient(at::Tensor& logits, const at::Tensor& peak, const at::Tensor& sum, const at::Tensor& scale,
                      const at::Tensor& target);
void adam(std::span<const Piece> pieces, at::ScalarType type, const Adam& rule, double grad_scale, c10::Device device);
void sgd(std::span<const Piece> pieces, at::ScalarType type, const Sgd& rule, double grad_scale, c10::Device device);
void lion(std::span<const Piece> pieces, at::ScalarType type, const Lion& rule, double grad_scale, c10::Device device);
void average(std::span<const Piece> pieces, at::ScalarType type, double decay, c10::Device device);
NormTerm norm_term(std::span<const Piece> pieces, at::ScalarType type, Norm kind, c10::Device device);

}  // namespace trireme::kernels::expressions
