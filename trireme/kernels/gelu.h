#pragma once
// The tanh form of GELU (Hendrycks and Gimpel, "Gaussian error linear units", 2016), which is
// x * sigmoid(2u) with u = sqrt(2 / pi) * (x + 0.044715 x^3): one exponential an element.

#include <ATen/core/Tensor.h>

namespace trireme::kernels {

/// gelu(x) for a contiguous tensor; fp64, fp32, bf16 or fp16 (by way of fp32). No autograd. Local.
at::Tensor gelu_tanh(const at::Tensor& x);

/// The gradient of x from that of gelu(x), both as x. Local.
at::Tensor gelu_tanh_backward(const at::Tensor& x, const at::Tensor& gradient);

}  // namespace trireme::kernels
