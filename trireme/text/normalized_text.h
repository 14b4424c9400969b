#pragma once
// NormalizedText: a stretch of an original text after normalizers have changed it, and for each of
// its bytes the bytes of the original that it came from.
//
// A change is told character by character, as Hugging Face's library tells it, for its offsets
// follow from that: a character replaces the next old one, or is inserted (and then shares the
// origin of what stands before), or replaces one and drops some that follow.
//
//   NormalizedText::Rewriter out(text);
//   out.put('a', 0);   // in place of the next character
//   out.put('b', 1);   // inserted
//   out.put('c', -2);  // in place of the next one; the two after it are gone
//   out.finish();

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/text/unicode.h"

namespace trireme::text {

class NormalizedText {
 public:
  /// Bytes of the original.
  struct Range {
    uint32_t begin = 0, end = 0;
  };

  /// The bytes [begin, end) of `original` as they are; they must be whole characters.
  NormalizedText(std::string_view original, size_t begin, size_t end);
  /// A copy of the bytes [begin, end) of another text.
  NormalizedText(const NormalizedText& from, size_t begin, size_t end);

  std::string_view view() const { return text_; }
  size_t size() const { return text_.size(); }
  /// Where the original of all of it begins; what is inserted before anything else comes from there.
  size_t original_begin() const { return begin_; }
  /// What the bytes [begin, end) came from; begin < end <= size().
  Range origin(size_t begin, size_t end) const {
    return {origins_[begin].begin, origins_[end - 1].end};
  }

  class Rewriter;
  /// Keeps the characters that `keep(char32_t)` wants.
  template <class Keep>
  void filter(const Keep& keep);
  /// Replaces each character by `change(char32_t)`.
  template <class Change>
  void map(const Change& change);
  /// Puts `prefix` before the text, unless the text is empty.
  void prepend(std::string_view prefix);
  /// Puts `content` in the place of each of the ranges, which are in order and do not overlap.
  void replace(const std::vector<Range>& ranges, std::string_view content);
  /// Removes whitespace at the ends.
  void strip(bool left, bool right);

 private:
  std::string text_;
  std::vector<Range> origins_;  // by byte of text_
  uint32_t begin_ = 0;
};

class NormalizedText::Rewriter {
 public:
  /// Rewrites all of `text`, whose first `dropped` characters are gone.
  explicit Rewriter(NormalizedText& text, int64_t dropped = 0);
  void put(char32_t value, int64_t change);
  /// Copies bytes of the old text from `at_` up to `end` as they are.
  void copy_until(size_t end);
  /// Skips old bytes up to `end` without writing anything.
  void skip_until(size_t end) { at_ = end; }
  void finish();

 private:
  void advance() {
    const char* p = old_.text_.data();
    if (at_ < old_.size()) at_ += decode_utf8(p + at_, p + old_.size()).length;
  }

  NormalizedText& old_;
  size_t at_ = 0;    // in the old text
  size_t kept_ = 0;  // old bytes that stay before everything that is put
  std::string text_;
  std::vector<Range> origins_;
};

template <class Keep>
void NormalizedText::filter(const Keep& keep) {
  const char *begin = text_.data(), *end = begin + text_.size();
  const char* p = begin;
  while (p < end) {  // most texts keep all
    const CodePoint c = decode_utf8(p, end);
    if (!keep(c.value)) break;
    p += c.length;
  }
  if (p == end) return;
  // Each kept character is followed by the removed ones up to the next.
  std::vector<std::pair<char32_t, int64_t>> kept;
  int64_t dropped = 0;
  for (p = begin; p < end;) {
    const CodePoint c = decode_utf8(p, end);
    p += c.length;
    if (keep(c.value)) {
      kept.emplace_back(c.value, 0);
    } else if (kept.empty()) {
      ++dropped;
    } else {
      --kept.back().second;
    }
  }
  Rewriter out(*this, dropped);
  for (const auto& [value, change] : kept) out.put(value, change);
  out.finish();
}

template <class Change>
void NormalizedText::map(const Change& change) {
  Rewriter out(*this);
  const std::string old = text_;
  for (const char *p = old.data(), *end = p + old.size(); p < end;) {
    const CodePoint c = decode_utf8(p, end);
    out.put(change(c.value), 0);
    p += c.length;
  }
  out.finish();
}

}  // namespace trireme::text
