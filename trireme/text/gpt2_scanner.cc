#include "trireme/text/gpt2_scanner.h"

#include <array>
#include <cstdint>

#include "trireme/text/unicode.h"

namespace trireme::text {
namespace {

struct Classified {
  CharClass kind;
  int length;
};

constexpr auto kAsciiClasses = [] {
  std::array<CharClass, 128> classes{};
  for (int c = 0; c < 128; ++c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool space = c == ' ' || (c >= '\t' && c <= '\r');
    classes[c] = letter                 ? CharClass::letter
                 : c >= '0' && c <= '9' ? CharClass::number
                 : space                ? CharClass::space
                                        : CharClass::other;
  }
  return classes;
}();

inline Classified classify(const char* p, const char* end) {
  const auto byte = static_cast<uint8_t>(*p);
  if (byte < 128) return {kAsciiClasses[byte], 1};
  CodePoint c = decode_utf8(p, end);
  return {char_class(c.value), c.length};
}

// Past the run of characters of one class.
inline const char* skip(const char* p, const char* end, CharClass kind) {
  while (p < end) {
    Classified c = classify(p, end);
    if (c.kind != kind) break;
    p += c.length;
  }
  return p;
}

// Length of the English contraction at an apostrophe; 0: none.
inline int contraction(const char* p, const char* end) {
  if (end - p < 2) return 0;
  const char a = p[1], b = end - p > 2 ? p[2] : '\0';
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return 3;
  return 0;
}

}  // namespace

const char* gpt2_piece_end(const char* p, const char* end) {
  if (*p == '\'') {
    if (int length = contraction(p, end)) return p + length;
  }
  const char* word = *p == ' ' ? p + 1 : p;
  if (word < end) {
    Classified first = classify(word, end);
    if (first.kind != CharClass::space) return skip(word + first.length, end, first.kind);
  }
  // Whitespace: all of it at the end of the text, else all but the last character, which goes with
  // the next piece.
  const char* last = p;
  const char* q = p;
  while (q < end) {
    Classified c = classify(q, end);
    if (c.kind != CharClass::space) break;
    last = q;
    q += c.length;
  }
  return q == end || last == p ? q : last;
}

}  // namespace trireme::text
