#pragma once
// Normalisation by the root mean square (Zhang and Sennrich, 2019): y = x / sqrt(mean(x^2) + eps) * (weight + offset).

#include <ATen/core/Tensor.h>

namespace trireme::kernels {

/// y, and a row's 1 / sqrt(...) in the type of the arithmetic: fp32, of fp64 fp64. `x` [..., features] contiguous; fp64,
/// fp32, bf16 or fp16; `weight` [features] any of these. No autograd. Local.
std::pair<at::Tensor, at::Tensor> rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, double offset);

/// The gradients of x, as x, and of the weight, in the type of the arithmetic and summed in an order that does not depend on
/// the number of threads. Local.
std::pair<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& gradient, const at::Tensor& x,
                                                    const at::Tensor& weight, const at::Tensor& inverse, double offset);

}  // namespace trireme::kernels
