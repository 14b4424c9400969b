#pragma once
// Masking: hides some words of a sample and makes their ids the labels, as BERT's pretraining does
// (Devlin et al., 2019): of the tokens chosen 80 % become the mask, 10 % a random id and 10 % stay.
// Whole words and runs of words (n-grams, each length n drawn with probability ~ 1/n) on request.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/fields.h"
#include "trireme/data/draws.h"
#include "trireme/data/examples.h"

namespace trireme::data {

struct MaskingOptions {
  double masked_lm_prob = 0.15, mask_share = 0.8, random_share = 0.1;
  int64_t max_predictions = 0, max_ngram = 1;
  bool whole_word = false;
  std::optional<int64_t> mask = {};

  template <class Self, class V>
  static void visit(Self& self, V&& v) {
    using base::Field;
    v("masked_lm_prob", self.masked_lm_prob, Field{"share of the tokens to predict", 0, 1});
    v("mask_share", self.mask_share, Field{"of those: become the mask", 0, 1});
    v("random_share", self.random_share,
      Field{"of those: become a random id; the others stay", 0, 1});
    v("max_predictions", self.max_predictions, Field{"tokens to predict at most; 0: no limit", 0});
    v("max_ngram", self.max_ngram, Field{"words hidden in a row at most", 1, 16});
    v("whole_word", self.whole_word, Field{"all tokens of a word together"});
    v("mask", self.mask, Field{"id of the mask; null: the tokenizer's", 0});
  }
};

class Masking {
 public:
  /// ConfigError where whole words are wanted without a tokenizer, or shares add up to more than 1.
  Masking(const MaskingOptions& options, const TextTools& tools);
  /// Masks some of the ids that may be masked; their labels become the ids that stood there, all
  /// others kIgnoreLabel.
  void apply(std::span<int64_t> ids, const std::vector<bool>& maskable, int64_t* labels,
             Draws& draws) const;

 private:
  MaskingOptions options_;
  int64_t mask_ = 0, vocab_size_;
  std::vector<bool> continues_;  // by id: goes on with the word before
};

}  // namespace trireme::data
