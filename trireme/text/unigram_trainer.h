#pragma once
// The trainer of Unigram tokenizers (Kudo, "Subword Regularization", 2018; the estimates follow
// SentencePiece): from all frequent substrings of words, expectation maximization fits
// probabilities, and the pieces whose loss costs least likelihood go, round by round. The result is
// the same for any number of threads.
//
//   auto tokenizer = train_unigram({"a.txt"}, {.vocab_size = 8000});

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/text/tokenizer.h"
#include "trireme/text/word_counts.h"

namespace trireme::text {

struct UnigramTrainOptions {
  int64_t vocab_size = 0;  // special tokens and characters included
  /// Get the first ids; the first stands for unknown text, the last ends documents.
  std::vector<std::string> special_tokens = {"<unk>", "<s>", "</s>"};
  int64_t max_piece_length = 16;          // characters
  double character_coverage = 0.9995;     // of all characters by frequency; others are unknown
  double shrinking_factor = 0.75;         // of the pieces that stay in a round
  int64_t seed_size = 1'000'000;          // pieces to begin with
  /// So many different words at most are kept count of at once; with more, the rarest are left out.
  int64_t max_words = kMaxWords / 2;
  /// Characters that are in the vocabulary even if the text lacks them, one each.
  std::vector<std::string> initial_alphabet = {};
  int threads = 0;                        // 0: all cores
  std::function<void(const char* doing, int64_t done, int64_t total)> progress = {};
  /// Called with a sentence for whoever trains, such as that words were left out.
  std::function<void(const std::string&)> note = {};
};

/// ConfigError for a vocabulary that cannot hold the special tokens and the characters.
std::unique_ptr<Tokenizer> train_unigram(const std::vector<std::string>& files,
                                         const UnigramTrainOptions& options);

}  // namespace trireme::text
