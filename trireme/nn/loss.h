#pragma once
// Losses as sums over counted items; the mean over the global batch is made once, by scaling the
// gradient that enters the backward pass.

#include <ATen/core/Tensor.h>

#include "trireme/comm/comm.h"
#include "trireme/nn/context.h"
#include "trireme/nn/param_store.h"

namespace trireme::nn {

/// Sum over rows of the cross entropy of logits that are split over `tp` by vocabulary (Shoeybi et
/// al., Megatron-LM, 2019): no rank ever holds a full row. `logits` [..., local vocab], `labels`
/// [...] hold global ids; labels of data::kIgnoreLabel count nothing. `first` is the local part's
/// first id. fp64 scalar, the same on every rank; computed in at least fp32. The backward writes
/// the gradient into the memory of the logits, which nobody may read after it. Collective over tp.
/// `tp` outlives the graph.
at::Tensor cross_entropy_sum(const at::Tensor& logits, const at::Tensor& labels, int64_t first,
                             const comm::Comm& tp);

/// An output projection to a vocabulary: logits = x table^T + bias, then soft_cap * tanh(logits / soft_cap).
struct VocabHead {
  Param* table = nullptr;  // local rows
  Param* bias = nullptr;   // null: none
  double soft_cap = 0;     // 0: none
  int64_t first = 0;       // global id of the first local row
  /// Logits that exist at a time on every rank, about; twice as many at most. 1024 rows of 50304 take eight turns.
  int64_t elements = 6'500'000;
};

/// cross_entropy_sum of a head's logits, which live for some rows at a time only, and only for those with a label that
/// counts (Wijmans et al., "Cut Your Losses", 2024, cut by rows alone). `x` [..., features] is the same on every rank,
/// its gradient a rank's own contribution.
///
/// The Context's loss request says what the loss is multiplied by where a backward pass follows: gradients of x, table and
/// bias are then made with the loss, while the logits are at hand. Those of table and bias are contributed at once and
/// never wait in the weight queue; the backward pass hands on that of x, and must be given that very factor. Without a
/// factor there is no backward pass. Collective over tp.
at::Tensor head_cross_entropy_sum(const at::Tensor& x, const VocabHead& head, const at::Tensor& labels,
                                  const comm::Comm& tp, const Context& context);

/// Labels that count (all but data::kIgnoreLabel).
int64_t count_labels(const at::Tensor& labels);

}  // namespace trireme::nn
