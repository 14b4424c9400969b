#pragma once
// Rotary: positions as rotations of pairs of features (Su et al., "RoFormer", 2021) and the ways to stretch them over longer
// texts. A pass of `positions` tokens after `first` earlier ones is rotated by angles that depend on the places alone, so
// caches, stages and ranks need nothing. Angles, sines and cosines are made in fp32 whatever the weights are, as Hugging
// Face makes them.
//
//   nn::Rotary rotary({.theta = 5e5, .size = 64});
//   q = rotary.apply(q, context);

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/nn/context.h"

namespace trireme::nn {

/// Names and meanings are those of Hugging Face's `rope_parameters`.
struct RotaryOptions {
  std::string type = "default";  // default, linear, dynamic, llama3, yarn, longrope
  double theta = 10000;
  int64_t size = 0;          // features of a head that are rotated, the first ones; even
  bool interleaved = false;  // pairs are neighbours (GPT-J), else the two halves
  double factor = 1;
  int64_t max_positions = 0, original_max_positions = 0;
  double low_freq_factor = 1, high_freq_factor = 4;                 // llama3
  double attention_factor = 0;                                      // yarn, longrope; 0: from the factor
  double beta_fast = 32, beta_slow = 1, mscale = 0, mscale_all_dim = 0;  // yarn
  bool truncate = true;                                             // yarn
  std::vector<double> short_factor = {}, long_factor = {};          // longrope
};

class Rotary {
 public:
  /// ConfigError for an unknown type or an odd size.
  explicit Rotary(RotaryOptions options);
  /// x [batch, heads, positions, head size], whose first position is the batch's. Local.
  at::Tensor apply(const at::Tensor& x, const Context& context) const;

 private:
  at::Tensor frequencies(int64_t length) const;
  RotaryOptions options_;
  double scale_ = 1;         // of sines and cosines
  at::Tensor frequencies_;   // of lengths that are not stretched
  struct Table {
    int64_t first = -1, positions = 0;
    at::Tensor cos, sin;     // [positions, size / 2]
  };
  mutable Table table_;      // of the last call: key follows query, micro-batch follows micro-batch
};

}  // namespace trireme::nn
