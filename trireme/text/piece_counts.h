#pragma once
// Counting the pieces that a tokenizer's normalizer and pre-tokenizer cut files into: what trainers
// of WordPiece and Unigram learn from.

#include <functional>
#include <string>
#include <vector>

#include "trireme/text/tokenizer_spec.h"
#include "trireme/text/word_counts.h"

namespace trireme::text {

/// Pieces of the files' lines with `spec`'s normalizer and pre-tokenizer, which must work word by
/// word. The same for any number of threads (0: all cores). Where there are more than `max_words` at
/// once, the rarest go: half of `max_words` stay, and `forgotten` counts the others.
WordCounts count_pieces(const std::vector<std::string>& files, const TokenizerSpec& spec,
                        int threads, const std::function<void(int64_t, int64_t)>& progress,
                        int64_t max_words, WordCounts::Forgotten& forgotten);

}  // namespace trireme::text
