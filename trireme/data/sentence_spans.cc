#include "trireme/data/sentence_spans.h"

#include <cmath>
#include <random>

namespace trireme::data {

std::vector<SentenceSpan> sentence_spans(const IndexedDataset& sentences, int64_t max_tokens,
                                         double short_seq_prob, int64_t min_sentences,
                                         uint32_t seed) {
  constexpr int64_t kLongSentence = 512;
  std::mt19937 random(seed);
  const auto every =
      static_cast<uint32_t>(short_seq_prob > 0 ? std::lround(1.0 / short_seq_prob) : 0);
  const auto draw_target = [&]() -> int64_t {
    if (every == 0) return max_tokens;
    const uint32_t drawn = random();
    return drawn % every == 0 ? 2 + drawn % (max_tokens - 1) : max_tokens;
  };
  std::vector<SentenceSpan> spans;
  for (int64_t document = 0; document < sentences.documents(); ++document) {
    const int64_t first = sentences.first_sequence(document),
                  last = sentences.first_sequence(document + 1);
    bool usable = last - first >= min_sentences && last > first;
    for (int64_t s = first; usable && last - first > 1 && s < last; ++s)
      usable = sentences.length(s) <= kLongSentence;
    if (!usable) continue;
    int64_t begin = first, tokens = 0, target = draw_target();
    for (int64_t s = first; s < last; ++s) {
      tokens += sentences.length(s);
      const int64_t left = last - s - 1;
      const bool full = tokens >= target && left > 1 && s + 1 - begin >= min_sentences;
      if (!full && left > 0) continue;
      spans.push_back({begin, s + 1, target, document});
      begin = s + 1;
      tokens = 0;
      target = draw_target();
    }
  }
  return spans;
}

}  // namespace trireme::data
