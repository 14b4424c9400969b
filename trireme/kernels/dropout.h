#pragma once
// Dropout whose mask is a function of global coordinates (Philox by coordinate, base/philox.h).

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

namespace trireme::kernels {

/// Where a local tensor [rows, b, c, d] lies in the global one. Element (i, j, k, l) uses
/// philox(key, {(origin_d + l) / 4, origin_c + k, origin_b + j, samples[i]})[(origin_d + l) % 4]
/// and is kept when that word >= floor(p * 2^32).
struct MaskCoordinates {
  uint64_t key = 0;
  at::Tensor samples;  // [rows] int64, where the local tensor is
  int64_t origin_b = 0, origin_c = 0, origin_d = 0;
};

/// x * mask / (1 - p), plus `added` (as x) where it is given, for a contiguous tensor of 2 to 4 dimensions ([rows, d], [rows, c, d] or
/// [rows, b, c, d]); fp64, fp32, bf16, fp16. No autograd; the backward is the same call on the
/// gradient. May write in place (`out` = `x`).
void dropout(const at::Tensor& x, at::Tensor& out, double p, const MaskCoordinates& where,
             const at::Tensor& added = {});

}  // namespace trireme::kernels
