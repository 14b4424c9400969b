#pragma once
// Losses as sums over counted items; the mean over the global batch is made once, by scaling the
// gradient that enters the backward pass.

#include <ATen/core/Tensor.h>

#include "trireme/comm/comm.h"

namespace trireme::nn {

/// Sum over rows of the cross entropy of logits that are split over `tp` by vocabulary (Shoeybi et
/// al., Megatron-LM, 2019): no rank ever holds a full row. `logits` [..., local vocab], `labels`
/// [...] hold global ids; labels of data::kIgnoreLabel count nothing. `first` is the local part's
/// first id. fp64 scalar, the same on every rank; computed in at least fp32. The backward writes
/// the gradient into the memory of the logits, which nobody may read after it. Collective over tp.
/// `tp` outlives the graph.
at::Tensor cross_entropy_sum(const at::Tensor& logits, const at::Tensor& labels, int64_t first,
                             const comm::Comm& tp);

/// Labels that count (all but data::kIgnoreLabel).
int64_t count_labels(const at::Tensor& labels);

}  // namespace trireme::nn
