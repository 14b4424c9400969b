#pragma once
// Rotation of pairs of features by angles of their position (Su et al., "RoFormer", 2021), in one pass.

#include <ATen/core/Tensor.h>

namespace trireme::kernels {

/// Of x [batch, heads, positions, size] in any strides: the first 2 * half features of each place, as pairs (i, i + half) or,
/// interleaved, (2i, 2i + 1), become (a cos - b sin, b cos + a sin), or with `back` (a cos + b sin, b cos - a sin); the
/// others stay. `cos` and `sin` [positions, half] are contiguous. fp64, fp32, bf16 or fp16 (by way of fp32). The result's
/// heads lie within a place. No autograd. Local.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool interleaved, bool back);

}  // namespace trireme::kernels
