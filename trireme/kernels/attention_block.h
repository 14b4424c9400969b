#pragma once
// A block of attention's scores, some queries by some keys, on its way to weights and back: what attention.cc does between
// two matrix products, without memory of its own.

#include <cstdint>

#include "trireme/kernels/line.h"

namespace trireme::kernels {

constexpr int64_t kQueries = 128, kKeys = 512;  // of a block
constexpr int64_t kStride = kKeys + 16;         // of its rows: a vector may be stored beyond their end

// Scores of queries [first_query, + rows) over keys [first_key, + columns).
template <class T>
struct ScoreBlock {
  int64_t first_query = 0, rows = 0, first_key = 0, columns = 0;
  int64_t place = 0;  // of the first query among the keys
  bool causal = false;
  int64_t window = 0;
  T cap = 0;
  const T* bias = nullptr;  // of the block's first score
  int64_t bias_stride = 0;
  const T* hidden = nullptr;       // of the block's first key on: not 0 where a key is hidden
  const uint8_t* blind = nullptr;  // of the block's first query on: does it see no key at all?
  const Line* line = nullptr;      // of the first query's weights; null: nothing is dropped
  T* scores = nullptr;
  T* terms = nullptr;  // largest score and sum, by query
  // Forward: what was summed so far, which a new largest score scales.
  T* out = nullptr;
  int64_t out_stride = 0, out_columns = 0;
  // Backward: gradients of the weights, which become those of the scores; sums over out * its gradient, by query.
  T* gradients = nullptr;
  const T* products = nullptr;
  T* bias_gradient = nullptr;
  int64_t bias_gradient_stride = 0;

  bool is_blind(int64_t row) const { return blind != nullptr && blind[row] != 0; }
};

/// Scores become weights, not yet divided by their sum; dropped ones are 0.
void forward_rows(const ScoreBlock<float>& block);
void forward_rows(const ScoreBlock<double>& block);
/// Scores become weights, dropped and scaled; the gradients of these become those of the scores.
void backward_rows(const ScoreBlock<float>& block);
void backward_rows(const ScoreBlock<double>& block);

}  // namespace trireme::kernels
