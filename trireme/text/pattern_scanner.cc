#include "trireme/text/pattern_scanner.h"

#include <array>
#include <cstdint>
#include <utility>

#include "trireme/text/gpt2_scanner.h"
#include "trireme/text/unicode.h"

namespace trireme::text {
namespace {

#define TRIREME_REST R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"
#define TRIREME_CONTRACTION R"((?i:'s|'t|'re|'ve|'m|'ll|'d))"
#define TRIREME_UPPER R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define TRIREME_LOWER R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"
constexpr std::pair<std::string_view, WordPattern> kPatterns[] = {
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
     WordPattern::gpt2},
    {R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
     WordPattern::gpt2},
    {TRIREME_CONTRACTION R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})" TRIREME_REST,
     WordPattern::cl100k},
    {TRIREME_CONTRACTION R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})" TRIREME_REST, WordPattern::qwen2},
    {R"([^\r\n\p{L}\p{N}]?)" TRIREME_UPPER "*" TRIREME_LOWER "+" TRIREME_CONTRACTION
     R"(?|[^\r\n\p{L}\p{N}]?)" TRIREME_UPPER "+" TRIREME_LOWER "*" TRIREME_CONTRACTION
     R"(?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     WordPattern::o200k},
};
#undef TRIREME_REST
#undef TRIREME_CONTRACTION
#undef TRIREME_UPPER
#undef TRIREME_LOWER

enum Bits : uint8_t { kUpper = 16, kLower = 32 };  // of o200k; a mark or a caseless letter is both

struct Character {
  char32_t value;
  int length;
  CharClass kind;
};

constexpr auto kAscii = [] {
  std::array<CharClass, 128> classes{};
  for (int c = 0; c < 128; ++c) {
    classes[c] = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ? CharClass::letter
                 : c >= '0' && c <= '9'                          ? CharClass::number
                 : c == ' ' || (c >= '\t' && c <= '\r')          ? CharClass::space
                                                                 : CharClass::other;
  }
  return classes;
}();

inline Character read(const char* p, const char* end) {
  const auto byte = static_cast<uint8_t>(*p);
  if (byte < 128) return {byte, 1, kAscii[byte]};
  const CodePoint c = decode_utf8(p, end);
  return {c.value, c.length, char_class(c.value)};
}

inline bool is_line_end(char c) {
  return c == '\r' || c == '\n';
}

inline const char* past_run(const char* p, const char* end, CharClass kind) {
  while (p < end) {
    const Character c = read(p, end);
    if (c.kind != kind) break;
    p += c.length;
  }
  return p;
}

// Past a contraction in any case at an apostrophe; the long s counts as an s. Nothing: `p`.
const char* past_contraction(const char* p, const char* end) {
  if (end - p < 2 || *p != '\'') return p;
  auto lower = [&](int i) {
    return p + i < end && static_cast<uint8_t>(p[i]) < 128 ? p[i] | 0x20 : 0;
  };
  const int a = lower(1), b = lower(2);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return p + 2;
  if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return p + 3;
  if (end - p >= 3 && p[1] == '\xC5' && p[2] == '\xBF') return p + 3;
  return p;
}

// \p{N} up to `most` times, punctuation with the space before it and the line ends (and slashes)
// after it, whitespace.
const char* rest(const char* p, const char* end, int most, bool slashes) {
  const Character first = read(p, end);
  if (first.kind == CharClass::number) {
    const char* q = p + first.length;
    for (int i = 1; i < most && q < end; ++i) {
      const Character c = read(q, end);
      if (c.kind != CharClass::number) break;
      q += c.length;
    }
    return q;
  }
  const char* punctuation = *p == ' ' ? p + 1 : p;
  const char* q = past_run(punctuation, end, CharClass::other);
  if (q > punctuation) {
    while (q < end && (is_line_end(*q) || (slashes && *q == '/'))) ++q;
    return q;
  }
  // Whitespace: up to its last line end; else all at the end of the text; else all but the last.
  const char *last = p, *line_end = nullptr;
  for (q = p; q < end;) {
    const Character c = read(q, end);
    if (c.kind != CharClass::space) break;
    last = q;
    q += c.length;
    if (is_line_end(*last)) line_end = q;
  }
  if (line_end) return line_end;
  return q == end || last == p ? q : last;
}

const char* cl100k_end(const char* p, const char* end, int most_digits) {
  if (*p == '\'') {
    if (const char* q = past_contraction(p, end); q > p) return q;
  }
  const Character first = read(p, end);
  if (first.kind == CharClass::letter) return past_run(p + first.length, end, CharClass::letter);
  if (first.kind != CharClass::number && !is_line_end(*p) && p + first.length < end) {
    const Character second = read(p + first.length, end);
    if (second.kind == CharClass::letter) {
      return past_run(p + first.length + second.length, end, CharClass::letter);
    }
  }
  return rest(p, end, most_digits, false);
}

uint8_t letter_case(char32_t value) {
  if (value < 128) {
    if (value >= 'a' && value <= 'z') return kLower;
    return value >= 'A' && value <= 'Z' ? kUpper : 0;
  }
  switch (category(value)) {
    case Category::kLu:
    case Category::kLt:
      return kUpper;
    case Category::kLl:
      return kLower;
    case Category::kLm:
    case Category::kLo:
    case Category::kMn:
    case Category::kMc:
    case Category::kMe:
      return kUpper | kLower;
    default:
      return 0;
  }
}

// [upper]*[lower]+ where `any` is false, [upper]+[lower]* where it is true; nothing: `p`.
const char* cased_word(const char* p, const char* end, bool any) {
  const char *q = p, *after_both = nullptr;  // past the latest one of the run that is both
  while (q < end) {
    const Character c = read(q, end);
    const uint8_t bits = letter_case(c.value);
    if (!(bits & kUpper)) break;
    q += c.length;
    if (bits & kLower) after_both = q;
  }
  const char* lower = q;
  while (lower < end) {
    const Character c = read(lower, end);
    if (!(letter_case(c.value) & kLower)) break;
    lower += c.length;
  }
  if (any) return q > p ? lower : p;
  if (lower > q) return lower;
  return after_both ? after_both : p;
}

const char* o200k_end(const char* p, const char* end) {
  const Character first = read(p, end);
  const bool lead = first.kind != CharClass::letter && first.kind != CharClass::number &&
                    !is_line_end(*p) && p + first.length < end;
  for (bool any : {false, true}) {
    if (lead) {
      const char* word = p + first.length;
      if (const char* q = cased_word(word, end, any); q > word) {
        return q < end ? past_contraction(q, end) : q;
      }
    }
    if (const char* q = cased_word(p, end, any); q > p) return q < end ? past_contraction(q, end) : q;
  }
  return rest(p, end, 3, true);
}

}  // namespace

std::optional<WordPattern> known_pattern(std::string_view regex) {
  for (const auto& [text, pattern] : kPatterns) {
    if (text == regex) return pattern;
  }
  return std::nullopt;
}

const char* word_end(WordPattern pattern, const char* p, const char* end) {
  switch (pattern) {
    case WordPattern::gpt2:
      return gpt2_piece_end(p, end);
    case WordPattern::cl100k:
      return cl100k_end(p, end, 3);
    case WordPattern::qwen2:
      return cl100k_end(p, end, 1);
    case WordPattern::o200k:
      return o200k_end(p, end);
  }
  return end;
}

}  // namespace trireme::text
