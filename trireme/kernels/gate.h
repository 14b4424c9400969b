#pragma once
// silu(gate) * up, the gated unit of Llama's kin (Shazeer, "GLU Variants Improve Transformer", 2020), in one pass.

#include <ATen/core/Tensor.h>

namespace trireme::kernels {

/// Both [..., features], their features neighbours; fp64, fp32, bf16 or fp16 (by way of fp32). The result is contiguous. No
/// autograd. Local.
at::Tensor gated_silu(const at::Tensor& gate, const at::Tensor& up);

/// The gradients of gate and up from that of the result, contiguous. Local.
std::pair<at::Tensor, at::Tensor> gated_silu_backward(const at::Tensor& gradient, const at::Tensor& gate,
                                                      const at::Tensor& up);

}  // namespace trireme::kernels
