#include "trireme/text/seed_pieces.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "trireme/text/unicode.h"

namespace trireme::text {
namespace {

// The suffixes of all words, each up to `longest` characters, in order; neighbours share the
// beginnings that repeat.
struct Suffix {
  std::string_view text;
  int64_t count;  // of its word
};

std::vector<Suffix> sorted_suffixes(const std::vector<WordCounts::Word>& words, int64_t longest) {
  std::vector<Suffix> suffixes;
  std::vector<size_t> begins;
  for (const WordCounts::Word& word : words) {
    begins.clear();
    const char *begin = word.bytes.data(), *end = begin + word.bytes.size();
    for (const char* p = begin; p < end; p += decode_utf8(p, end).length) {
      begins.push_back(p - begin);
    }
    begins.push_back(word.bytes.size());
    for (size_t i = 0; i + 1 < begins.size(); ++i) {
      const size_t stop = begins[std::min(i + static_cast<size_t>(longest), begins.size() - 1)];
      suffixes.push_back({word.bytes.substr(begins[i], stop - begins[i]), word.count});
    }
  }
  std::sort(suffixes.begin(), suffixes.end(),
            [](const Suffix& a, const Suffix& b) { return a.text < b.text; });
  return suffixes;
}

// Bytes that two texts share at their beginnings, whole characters only.
size_t shared(std::string_view a, std::string_view b) {
  const size_t limit = std::min(a.size(), b.size());
  size_t n = 0;
  while (n < limit && a[n] == b[n]) ++n;
  while (n > 0 && n < a.size() && (static_cast<uint8_t>(a[n]) & 0xC0) == 0x80) --n;
  return n;
}

}  // namespace

std::vector<SeedPiece> seed_pieces(const std::vector<WordCounts::Word>& words,
                                   const std::vector<SeedPiece>& alphabet, int64_t longest,
                                   int64_t size) {
  const std::vector<Suffix> suffixes = sorted_suffixes(words, longest);
  struct Candidate {
    double score;
    std::string_view text;
  };
  std::vector<Candidate> candidates;
  auto offer = [&](std::string_view text, int64_t count) {
    if (count < 2) return;
    const int64_t characters = count_characters(text);
    if (characters < 2) return;
    candidates.push_back({static_cast<double>(count) * static_cast<double>(characters), text});
  };
  // Beginnings that are open at a suffix, the shorter first, with the counts that they gathered.
  struct Open {
    size_t length;
    int64_t count;
  };
  std::vector<Open> open;
  auto close = [&](std::string_view text, size_t down_to) {
    while (!open.empty() && open.back().length > down_to) {
      const Open top = open.back();
      open.pop_back();
      offer(text.substr(0, top.length), top.count);
      if (!open.empty() && open.back().length >= down_to) {
        open.back().count += top.count;
      } else if (down_to > 0) {
        open.push_back({down_to, top.count});
        break;
      }
    }
  };
  for (size_t i = 0; i < suffixes.size(); ++i) {
    const Suffix& suffix = suffixes[i];
    if (i > 0) close(suffixes[i - 1].text, shared(suffixes[i - 1].text, suffix.text));
    if (!open.empty() && open.back().length == suffix.text.size()) {
      open.back().count += suffix.count;
    } else {
      open.push_back({suffix.text.size(), suffix.count});
    }
  }
  if (!suffixes.empty()) close(suffixes.back().text, 0);
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score > b.score : a.text < b.text;
  });
  if (static_cast<int64_t>(candidates.size()) > size) candidates.resize(size);
  std::vector<SeedPiece> pieces = alphabet;
  for (const Candidate& candidate : candidates) {
    pieces.push_back({std::string(candidate.text), candidate.score});
  }
  double sum = 0;
  for (const SeedPiece& piece : pieces) sum += piece.score;
  for (SeedPiece& piece : pieces) piece.score = std::log(piece.score) - std::log(sum);
  std::sort(pieces.begin(), pieces.end(),
            [](const SeedPiece& a, const SeedPiece& b) { return a.text < b.text; });
  return pieces;
}

}  // namespace trireme::text
