#pragma once
// Seed pieces: the frequent substrings of words, from which Unigram training begins.

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/text/word_counts.h"

namespace trireme::text {

struct SeedPiece {
  std::string text;
  double score = 0;
};

/// `alphabet` (scores are counts) and the `size` substrings of at most `longest` characters that
/// cover most of the text, with logarithms of their shares as scores, in byte order.
std::vector<SeedPiece> seed_pieces(const std::vector<WordCounts::Word>& words,
                                   const std::vector<SeedPiece>& alphabet, int64_t longest,
                                   int64_t size);

}  // namespace trireme::text
