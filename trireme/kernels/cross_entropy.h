#pragma once
// The two passes of a softmax cross entropy over rows of logits; each reads its memory once. A row
// may be split over ranks by columns: what they exchange between the passes is up to the caller
// (nn/loss.h).
//
//   terms = softmax_terms(logits);                        // fp64 [rows, 2]: peak, sum
//   softmax_gradient(logits, peak, sum, scale, target);   // the logits become the gradient

#include <ATen/core/Tensor.h>

namespace trireme::kernels {

/// Of each row of `logits` [rows, columns] the largest value and the sum of exp(value - largest),
/// as fp64 [rows, 2]; without columns -infinity and 0. fp64, fp32, bf16 or fp16, each row
/// contiguous; the arithmetic is fp32 (fp64 for fp64) with sums of 1024 values added in fp64. A NaN
/// or +infinity makes the sum NaN. Local.
at::Tensor softmax_terms(const at::Tensor& logits);

/// In place, for each row i: scale[i] * (exp(logits[i, j] - peak[i]) / sum[i] - (j == target[i]));
/// a row with scale 0 becomes zeros whatever it holds. `peak`, `sum` and `scale` [rows] are fp64,
/// `target` [rows] int64 and outside of the columns where no column is the target. Local.
void softmax_gradient(at::Tensor& logits, const at::Tensor& peak, const at::Tensor& sum,
                      const at::Tensor& scale, const at::Tensor& target);

}  // namespace trireme::kernels
