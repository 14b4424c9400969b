#pragma once
// Attention block by block: scores of some queries over some keys live at a time, never all of them (Dao et al.,
// "FlashAttention-2", 2023), with what scores may need beside the product: soft cap, bias, causal windows, padding, dropout
// by coordinate. Products are the BLAS's, everything between them is vectorised. Results do not depend on the number of
// threads, nor on which other samples or heads a call holds.
//
//   AttentionResult r = attention(q, k, v, {.scale = 0.125, .causal = true});
//   AttentionGradients g = attention_backward(gradient, q, k, v, r, scores);

#include <ATen/core/Tensor.h>

#include "trireme/kernels/dropout.h"

namespace trireme::kernels {

struct AttentionScores {
  double scale = 1;
  double soft_cap = 0;   // scores become soft_cap * tanh(score / soft_cap); 0: as they are
  bool causal = false;   // a query sees the keys up to its own place; the queries are the last places
  int64_t window = 0;    // of causal ones the last so many; 0: all
  at::Tensor bias = {};  // added to the scores: broadcasts to [batch, heads, queries, keys] and has these dimensions
  at::Tensor keys = {};  // bool [batch, keys]: which may be seen; none: all
  double dropout = 0;    // of the weights, below 1
  MaskCoordinates where = {};  // of weights [batch, heads, queries, keys]
};

struct AttentionResult {
  at::Tensor out;    // [batch, heads, queries, value size]; in memory heads lie within a query
  at::Tensor terms;  // of each query's softmax [batch, heads, queries, 2]: largest score and sum of exponentials
};

/// q [batch, heads, queries, size], k [batch, kv heads, keys, size], v [batch, kv heads, keys, value size]: fp32 or fp64,
/// in any strides; kv heads divide heads. A query that sees no key gets the mean of all values. Local.
AttentionResult attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionScores& scores);

struct AttentionGradients {
  at::Tensor q, k, v;    // in memory heads lie within a place
  at::Tensor bias = {};  // of bias' own shape, where it is wanted
};

/// From the gradient of `out`. A bias whose gradient is wanted is not broadcast over queries or keys. Local.
AttentionGradients attention_backward(const at::Tensor& gradient, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const AttentionResult& result, const AttentionScores& scores,
                                      bool bias_gradient);

}  // namespace trireme::kernels
