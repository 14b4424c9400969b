#pragma once
// BeamSearch: the bookkeeping of beam search over one prompt, without a model. It keeps the
// likeliest unfinished sequences and the best finished ones; a sequence is finished by the end
// token or by its length, and counts with its log probability over (new tokens)^length_penalty.
// Deterministic; step by step what Hugging Face's `generate(num_beams=..., do_sample=False)` does.
//
//   BeamSearch search(prompt, {.count = 4}, 20, end_token);
//   while (!search.done()) search.advance(log_probs_of(search.running()));
//   ids = search.best();

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme::generate {

/// When a search ends before its sequences reach their length.
enum class EarlyStopping : uint8_t {
  no,     // no running sequence looks better than the worst finished one: its score if it ended now
  yes,    // as many sequences as beams are finished
  never,  // as `no`, with the best score that a running sequence could still reach (length_penalty
          // above 0)
};

struct Beams {
  int64_t count = 1;  // 1: no beam search
  double length_penalty = 1.0;
  EarlyStopping early_stopping = EarlyStopping::no;

  /// ConfigError for values out of range.
  void check() const;
};

class BeamSearch {
 public:
  BeamSearch(std::vector<int64_t> prompt, const Beams& beams, int64_t max_new_tokens,
             std::optional<int64_t> end_token);

  /// `log_probs` [running, vocab] of the next token of each running sequence: takes one step. There
  /// must be at least one candidate of finite probability.
  void advance(const at::Tensor& log_probs);

  bool done() const { return done_; }
  /// Prompt and tokens so far; one sequence before the first step, then at most `count`.
  const std::vector<std::vector<int64_t>>& running() const { return running_; }
  /// For each running sequence the place, before the last step, of the one that it continues.
  const std::vector<int64_t>& parents() const { return parents_; }
  /// The new tokens of the best finished sequence.
  std::vector<int64_t> best() const;

 private:
  struct Finished {
    double score;
    std::vector<int64_t> ids;
  };
  double score(double log_prob, int64_t new_tokens) const;
  bool full() const;
  void finish(double log_prob, std::vector<int64_t> ids);

  Beams beams_;
  int64_t prompt_size_, max_new_tokens_;
  std::optional<int64_t> end_token_;
  std::vector<std::vector<int64_t>> running_;
  std::vector<double> log_probs_;  // of the running sequences, best first
  std::vector<int64_t> parents_;
  std::vector<Finished> finished_;  // best first, at most `count`
  bool done_ = false;
};

}  // namespace trireme::generate
