#pragma once
// Learning merges: from words as lists of symbols, the pairs of neighbours that byte-pair encoding
// merges, one by one: the most frequent pair first, of equally frequent ones the lowest ids.

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trireme/text/bpe.h"

namespace trireme::text {

/// The tokens so far, by id: special tokens, the alphabet, then what merges make.
struct LearnedTokens {
  std::vector<std::string> texts;
  std::unordered_map<std::string, int32_t> ids;

  int32_t add(const std::string& text) {
    auto [entry, added] = ids.emplace(text, static_cast<int32_t>(texts.size()));
    if (added) texts.push_back(text);
    return entry->second;
  }
};

struct CountedWord {
  std::vector<int32_t> symbols;
  int64_t count = 0;
};

struct MergeOptions {
  int64_t vocab_size = 0;     // tokens to stop at
  int64_t min_frequency = 0;  // pairs seen less often are not merged
  int64_t max_token_length = 0;  // symbols; what merges make stays shorter. 0: no limit
  std::string prefix;         // of symbols inside a word; the second of a pair loses it
  std::function<void(const char* doing, int64_t done, int64_t total)> progress = {};
};

/// Adds to `tokens` and returns the merges, each pair once. `words` are consumed.
std::vector<MergeRule> learn_merges(std::vector<CountedWord> words, LearnedTokens& tokens,
                                    const MergeOptions& options);

}  // namespace trireme::text
