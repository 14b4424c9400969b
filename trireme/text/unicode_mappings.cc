#include <algorithm>
#include <iterator>
#include <string>

#include "trireme/text/page_table.h"
#include "trireme/text/unicode.h"

namespace trireme::text {
namespace {

struct Decomposition {
  char32_t from;
  uint16_t canonical, canonical_length, compatible, compatible_length;  // in kDecompositionPool
};
struct Composition {
  char32_t first, second, composed;
};
struct ClassRange {
  char32_t first, last;
  uint8_t value;
};
struct LowercaseMapping {
  char32_t from, first, second;
};

#include "trireme/text/unicode_folds.inc"
#include "trireme/text/unicode_mappings.inc"

constexpr char32_t kHangulL = 0x1100, kHangulV = 0x1161, kHangulT = 0x11A7, kHangulS = 0xAC00;
constexpr char32_t kCountL = 19, kCountV = 21, kCountT = 28;

}  // namespace

std::span<const CaseFold> case_folds() {
  return kCaseFolds;
}
std::span<const FullCaseFold> full_case_folds() {
  return kFullCaseFolds;
}

std::u32string_view decomposition(char32_t value, bool compatible) {
  const auto* end = std::end(kDecompositions);
  const auto* found = std::lower_bound(std::begin(kDecompositions), end, value,
                                       [](const auto& d, char32_t c) { return d.from < c; });
  if (found == end || found->from != value) return {};
  return compatible ? std::u32string_view(kDecompositionPool + found->compatible,
                                          found->compatible_length)
                    : std::u32string_view(kDecompositionPool + found->canonical,
                                          found->canonical_length);
}

uint8_t combining_class(char32_t value) {
  static const PageTable<uint8_t> table([](const auto& set) {
    for (const ClassRange& range : kCombiningClasses) {
      set(range.first, range.last, [&](uint8_t& at) { at = range.value; });
    }
  });
  return table.at(value);
}

char32_t compose(char32_t first, char32_t second) {
  if (first >= kHangulL && first < kHangulL + kCountL && second >= kHangulV &&
      second < kHangulV + kCountV) {
    return kHangulS + ((first - kHangulL) * kCountV + (second - kHangulV)) * kCountT;
  }
  if (first >= kHangulS && first < kHangulS + kCountL * kCountV * kCountT &&
      (first - kHangulS) % kCountT == 0 && second > kHangulT && second < kHangulT + kCountT) {
    return first + (second - kHangulT);
  }
  const auto* end = std::end(kCompositions);
  const auto* found = std::lower_bound(
      std::begin(kCompositions), end, std::pair(first, second),
      [](const Composition& c, const auto& key) { return std::pair(c.first, c.second) < key; });
  return found != end && found->first == first && found->second == second ? found->composed : 0;
}

Lowercase lowercase(char32_t value) {
  const auto* end = std::end(kLowercase);
  const auto* found = std::lower_bound(std::begin(kLowercase), end, value,
                                       [](const auto& m, char32_t c) { return m.from < c; });
  if (found == end || found->from != value) return {value, 0};
  return {found->first, found->second};
}

}  // namespace trireme::text
