#pragma once
// Sampling: from the logits of the last position to the next token. Pure functions on the host; what is drawn is a
// function of (seed, prompt, place), so every layout draws the same tokens.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace trireme::generate {

struct Sampling {
  bool greedy = false;
  double temperature = 1.0;
  int64_t top_k = 0;                 // 0: all
  double top_p = 1.0;                // 1: all
  int64_t no_repeat_ngram_size = 0;  // 0: off
  uint64_t seed = 0;

  /// ConfigError for values out of range.
  void check() const;
};

/// The next token of one sequence. `logits` [vocab]; `ids` are prompt and tokens so far; `prompt` is the sequence's
/// index. Order as in Hugging Face's generate: banned n-grams, temperature, top-k, top-p (Holtzman et al., 2019).
int64_t next_token(const at::Tensor& logits, std::span<const int64_t> ids, const Sampling& sampling, int64_t prompt);

/// Tokens that would complete an n-gram that `ids` already holds.
std::vector<int64_t> banned_by_ngrams(std::span<const int64_t> ids, int64_t n);

}  // namespace trireme::generate
