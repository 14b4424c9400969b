#pragma once
// Code points and what tokenizers ask about them, at the Unicode versions Hugging Face's
// `tokenizers` uses (they differ from question to question).
//
// Text is any byte string: a byte that is not part of well-formed UTF-8 counts as one character of
// class `other`, so nothing is ever lost or refused. The tables come from
// tools/generate_unicode_tables.py.
//
//   CodePoint c = decode_utf8(p, end);   // c.length bytes, at least 1
//   if (char_class(c.value) == CharClass::letter) ...

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace trireme::text {

enum class CharClass : uint8_t { other, letter, number, space };

/// Values of a CodePoint from here on are bytes outside well-formed UTF-8: kInvalidByte + byte.
constexpr char32_t kInvalidByte = 0x110000;

struct CodePoint {
  char32_t value = kInvalidByte;
  int length = 1;  // bytes
};

/// The character at `p`; p < end.
CodePoint decode_utf8(const char* p, const char* end);
/// The character that ends just before `p`; begin < p.
CodePoint decode_utf8_before(const char* begin, const char* p);
/// Appends a scalar value as UTF-8, or the invalid byte as it was.
void append_utf8(std::string& out, char32_t value);
/// Bytes that `append_utf8` writes.
int utf8_length(char32_t value);
int64_t count_characters(std::string_view text);
/// Whether all of the text is well-formed.
bool is_utf8(std::string_view text);
/// Each maximal ill-formed part as one U+FFFD, as the Encoding Standard and Rust do it.
std::string replace_invalid_utf8(std::string_view text);

/// `\p{L}`, `\p{N}`, `\s` or neither.
CharClass char_class(char32_t value);
inline bool is_space(char32_t value) {
  return char_class(value) == CharClass::space;
}
/// `\w` as Rust's `regex` sees it: what a `single_word` added token may not touch.
bool is_word_character(char32_t value);

/// General category; kCn for unassigned code points and invalid bytes.
enum class Category : uint8_t {
  kCn, kLu, kLl, kLt, kLm, kLo, kMn, kMc, kMe, kNd, kNl, kNo, kPc, kPd, kPs, kPe, kPi, kPf, kPo,
  kSm, kSc, kSk, kSo, kZs, kZl, kZp, kCc, kCf, kCo,
};
Category category(char32_t value);

/// What normalizers and pre-tokenizers ask, as bits of `char_flags`.
enum CharFlag : uint16_t {
  kPunctuation = 1,   // cut out by Punctuation and BertPreTokenizer
  kNumeric = 2,       // cut out by Digits
  kBertDropped = 4,   // control characters and the like that BertNormalizer removes
  kBertAccent = 8,    // marks that BertNormalizer strips
  kMark = 16,         // marks that StripAccents removes
  kCanonical = 32,    // has a canonical decomposition
  kCompatible = 64,   // has a compatibility decomposition
  kUppercase = 128,   // changes when lowercased
  kCombining = 256,   // a combining class other than 0
};
uint16_t char_flags(char32_t value);

/// Grapheme_Cluster_Break and Extended_Pictographic.
enum class Grapheme : uint8_t {
  kOther, kControl, kExtend, kZwj, kPrepend, kSpacingMark, kHangulL, kHangulV, kHangulT, kHangulLV,
  kHangulLVT, kRegional, kPictographic,
};
/// Puts `to` in place of each `from`; of an empty one, between all characters and at both ends.
void replace_all(std::string& text, std::string_view from, std::string_view to);

/// Where the grapheme cluster (UAX 29, extended) that begins at `p` ends; p < end.
const char* grapheme_end(const char* p, const char* end);

/// Classes such that UnicodeScripts cuts between different ones; 0 joins with all.
int script_class(char32_t value);

struct CodeRange {
  char32_t first, last;
};
/// Ranges of a class of regular expressions: a category ("L", "Lu"), a script ("Han"), "word",
/// "word in a class" (where \w is a little less), "space", "punct", "alpha"; empty for a name that
/// is not known.
std::span<const CodeRange> regex_class(std::string_view name);

/// Code points that regular expressions take for the same without case: `folded` stands for all of
/// them. In order of `code`; what folds to itself is not listed.
struct CaseFold {
  char32_t code, folded;
};
std::span<const CaseFold> case_folds();
/// Code points that are several others without case, as U+00DF is "ss".
struct FullCaseFold {
  char32_t code;
  std::u32string_view folded;
};
std::span<const FullCaseFold> full_case_folds();

/// The full decomposition (canonical, or compatible); empty where the code point stays itself.
/// Hangul syllables are left out: their decomposition is arithmetic.
std::u32string_view decomposition(char32_t value, bool compatible);
uint8_t combining_class(char32_t value);
/// The primary composite of two code points, 0 where there is none.
char32_t compose(char32_t first, char32_t second);
/// Lowercase of one code point; `second` is 0 but for U+0130.
struct Lowercase {
  char32_t first, second;
};
Lowercase lowercase(char32_t value);

}  // namespace trireme::text
