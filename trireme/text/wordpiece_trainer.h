#pragma once
// The trainer of WordPiece tokenizers as BERT uses them: the vocabulary is learned as byte-pair
// encoding of characters learns it, pieces inside a word being written with "##". Unlike Hugging
// Face's trainer it gives the same vocabulary each time, whatever the number of threads.
//
//   auto tokenizer = train_wordpiece({"a.txt"}, {.vocab_size = 30000});

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/text/tokenizer.h"
#include "trireme/text/word_counts.h"

namespace trireme::text {

struct WordPieceTrainOptions {
  int64_t vocab_size = 0;        // special tokens and characters included
  int64_t min_frequency = 0;     // pairs seen less often are not merged
  int64_t limit_alphabet = 1000;  // so many of the most frequent characters; others are unknown
  /// Get the first ids. The unknown token and those around a text must be among them.
  std::vector<std::string> special_tokens = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
  bool lowercase = true;
  /// So many different words at most are kept count of at once; with more, the rarest are left out.
  int64_t max_words = kMaxWords;
  /// Characters that are in the vocabulary even if the text lacks them, one each.
  std::vector<std::string> initial_alphabet = {};
  int threads = 0;  // 0: all cores
  std::function<void(const char* doing, int64_t done, int64_t total)> progress = {};
  /// Called with a sentence for whoever trains, such as that words were left out.
  std::function<void(const std::string&)> note = {};
};

/// ConfigError for a vocabulary that cannot hold the special tokens and the alphabet.
std::unique_ptr<Tokenizer> train_wordpiece(const std::vector<std::string>& files,
                                           const WordPieceTrainOptions& options);

}  // namespace trireme::text
