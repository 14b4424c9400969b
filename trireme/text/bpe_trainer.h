#pragma once
// The trainer of byte-level BPE tokenizers. From the same files it learns the merges that Hugging
// Face's `BpeTrainer` learns (Tokenizer.train with the ByteLevel pre-tokenizer and the whole byte
// alphabet), ties included: the most frequent pair first, of equally frequent ones the lowest ids.
// The result is the same for any number of threads.
//
//   auto tokenizer = train_bpe({"a.txt", "b.txt"}, {.vocab_size = 4096});

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/text/tokenizer.h"
#include "trireme/text/word_counts.h"

namespace trireme::text {

struct BpeTrainOptions {
  int64_t vocab_size = 0;     // special tokens and the 256 bytes included
  int64_t min_frequency = 0;  // pairs seen less often are not merged
  int64_t max_token_length = 0;  // bytes; what merges of merges make stays shorter. 0: no limit
  std::vector<std::string> special_tokens = {"<|endoftext|>"};  // get the first ids; the first ends documents
  bool add_prefix_space = false;
  /// So many different words at most are kept count of at once; with more, the rarest are left out.
  int64_t max_words = kMaxWords;
  int threads = 0;  // 0: all cores
  /// Called now and then with what is being done and how far it is.
  std::function<void(const char* doing, int64_t done, int64_t total)> progress = {};
  /// Called with a sentence for whoever trains, such as that words were left out.
  std::function<void(const std::string&)> note = {};
};

/// Trains on text files. The vocabulary is smaller than asked for when the text has no more pairs
/// to merge. ConfigError for a vocabulary that cannot hold the special tokens and the bytes;
/// IoError for a file.
std::unique_ptr<Tokenizer> train_bpe(const std::vector<std::string>& files,
                                     const BpeTrainOptions& options);

}  // namespace trireme::text
