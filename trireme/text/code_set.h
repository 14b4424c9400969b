#pragma once
// Sets of code points as sorted ranges that do not touch, and what character classes of regular
// expressions do with them.
//
//   auto consonants = intersection(united({{'a', 'z'}}), complement(vowels));

#include <algorithm>
#include <span>
#include <vector>

#include "trireme/text/unicode.h"

namespace trireme::text {

using CodeSet = std::vector<CodeRange>;

inline bool contains(std::span<const CodeRange> set, char32_t code) {
  auto after = std::upper_bound(set.begin(), set.end(), code,
                                [](char32_t c, const CodeRange& range) { return c < range.first; });
  return after != set.begin() && code <= std::prev(after)->last;
}

/// The set of ranges in any order, which may overlap.
inline CodeSet united(CodeSet ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const CodeRange& a, const CodeRange& b) { return a.first < b.first; });
  CodeSet set;
  for (const CodeRange& range : ranges) {
    if (!set.empty() && range.first <= set.back().last + 1) {
      set.back().last = std::max(set.back().last, range.last);
    } else {
      set.push_back(range);
    }
  }
  return set;
}

/// All code points that are not in `set`.
inline CodeSet complement(std::span<const CodeRange> set) {
  CodeSet rest;
  char32_t next = 0;
  for (const CodeRange& range : set) {
    if (range.first > next) rest.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= 0x10FFFF) rest.push_back({next, 0x10FFFF});
  return rest;
}

inline CodeSet intersection(std::span<const CodeRange> a, std::span<const CodeRange> b) {
  CodeSet outside = complement(a);
  const CodeSet more = complement(b);
  outside.insert(outside.end(), more.begin(), more.end());
  return complement(united(std::move(outside)));
}

}  // namespace trireme::text
