#pragma once
// Attention: what happens between a layer's projections, for every family. Options say which keys a query sees and
// how scores are made; AttentionMask is what a batch adds to them. Rotary positions and projections are not its business.
//
//   at::Tensor out = nn::attention(q, k, v, {.scale = scale_, .causal = true, .window = 256}, {}, context);

#include <ATen/core/Tensor.h>

#include "trireme/nn/context.h"

namespace trireme::nn {

struct AttentionOptions {
  double scale = 1;
  bool causal = false;   // a query sees the keys up to its own place
  int64_t window = 0;    // of those the last so many, its own among them; 0: all
  double soft_cap = 0;   // scores become soft_cap * tanh(score / soft_cap); 0: as they are
  double dropout = 0;    // of the weights, by coordinate (sample, head, query, key)
  int layer = 0, site = 0;
  int64_t first_head = 0;  // global index of the first local head
};

struct AttentionMask {
  at::Tensor bias = {};  // added to the scores; broadcasts to [batch, local heads, queries, keys]; may want a gradient
  at::Tensor keys = {};  // bool [batch, keys]: which may be seen (padding is false); none: all
};

/// Attention of q [batch, local heads, queries, head size] over k, v [batch, local kv heads, keys, head size], each of
/// whose heads serves as many query heads. A query that sees no key gets the mean of the values. Causal attention uses
/// and extends the Context's cache: the queries are the last places then. Never holds all scores: PyTorch's kernel where it
/// is fast, ours (kernels/attention.h) where weights are dropped, scores capped or a bias wants a gradient; without
/// Context::fuse these take plain operations. Scores and softmax in at least fp32. Local.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& options,
                     const AttentionMask& mask, const Context& context);

/// [batch, seq, heads * head_size] -> [batch, heads, seq, head_size], and back.
at::Tensor split_heads(const at::Tensor& x, int64_t head_size);
at::Tensor merge_heads(const at::Tensor& x);

}  // namespace trireme::nn
