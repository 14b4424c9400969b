#pragma once
// Masking: hides some words of a sample and makes their ids the labels, as BERT's pretraining does
// (Devlin et al., 2019): of the tokens chosen 80 % become the mask, 10 % a random id and 10 % stay.
// Whole words and runs of words (n-grams, each length n drawn with probability ~ 1/n) on request.
// Where a word begins the tokenizer's marks tell; for languages written without spaces (Chinese) a
// list of words does, of which the longest that fits is taken.

#include <cstdint>
#include <optional>
#include <set>
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
  std::string words = "";
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
    v("words", self.words,
      Field{"with whole_word: a file with a word on each line, whose tokens make one word too where they "
            "stand in a row, as for Chinese; empty: none"});
    v("mask", self.mask, Field{"id of the mask; null: the tokenizer's", 0});
  }
};

class Masking {
 public:
  /// ConfigError where whole words are wanted without a tokenizer, shares add up to more than 1, or
  /// a list of words is of no use: without whole_word, or each of its words is one token.
  Masking(const MaskingOptions& options, const TextTools& tools);
  /// Masks some of the ids that may be masked; their labels become the ids that stood there, all
  /// others kIgnoreLabel.
  void apply(std::span<int64_t> ids, const std::vector<bool>& maskable, int64_t* labels,
             Draws& draws) const;

 private:
  void read_words(const text::Tokenizer& tokenizer);
  bool joins(std::span<const int64_t> ids, size_t i) const;
  size_t listed(std::span<const int64_t> ids, size_t begin, size_t end) const;

  MaskingOptions options_;
  int64_t mask_ = 0, vocab_size_;
  std::vector<bool> continues_;        // by id: goes on with the word before
  std::set<std::vector<int64_t>> words_;  // of the list, as ids; two or more each
  size_t longest_word_ = 0;
};

/// What the options read beside themselves, for a dataset's identity: the hash of the list of words.
std::string identity_of(const MaskingOptions& options);

}  // namespace trireme::data
