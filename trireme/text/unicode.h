#pragma once
// Code points and the classes that pre-tokenizers ask for, at the Unicode version Hugging Face's
// `tokenizers` uses.
//
// Text is any byte string: a byte that is not part of well-formed UTF-8 counts as one character of
// class `other`, so nothing is ever lost or refused. The tables come from
// tools/generate_unicode_ranges.py.
//
//   CodePoint c = decode_utf8(p, end);   // c.length bytes, at least 1
//   if (char_class(c.value) == CharClass::letter) ...

#include <cstdint>
#include <string>

namespace trireme::text {

enum class CharClass : uint8_t { other, letter, number, space };

/// Value of a CodePoint for a byte outside well-formed UTF-8; above every Unicode scalar value.
constexpr char32_t kInvalidByte = 0x110000;

struct CodePoint {
  char32_t value = kInvalidByte;
  int length = 1;  // bytes
};

/// The character at `p`; p < end.
CodePoint decode_utf8(const char* p, const char* end);
/// The character that ends just before `p`; begin < p.
CodePoint decode_utf8_before(const char* begin, const char* p);
/// Appends a scalar value as UTF-8.
void append_utf8(std::string& out, char32_t value);

/// `\p{L}`, `\p{N}`, `\s` or neither.
CharClass char_class(char32_t value);
/// `\w` as Rust's `regex` sees it: what a `single_word` added token may not touch.
bool is_word_character(char32_t value);

}  // namespace trireme::text
