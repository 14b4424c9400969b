#include "trireme/text/unicode.h"

#include <algorithm>
#include <array>
#include <vector>

namespace trireme::text {
namespace {

struct CodeRange {
  char32_t first, last;
};

#include "trireme/text/unicode_ranges.inc"

constexpr uint8_t kClassMask = 3, kWordBit = 4;
constexpr int kPageBits = 8, kPages = (kInvalidByte >> kPageBits) + 1;

// Two stages: most pages of 256 code points are alike, so each distinct page is stored once.
class ClassTable {
 public:
  ClassTable() {
    std::vector<uint8_t> flat(size_t{kPages} << kPageBits, 0);
    auto fill = [&](const auto& ranges, uint8_t bits) {
      for (const CodeRange& range : ranges) {
        for (char32_t c = range.first; c <= range.last; ++c) flat[c] |= bits;
      }
    };
    fill(kLetters, static_cast<uint8_t>(CharClass::letter));
    fill(kNumbers, static_cast<uint8_t>(CharClass::number));
    fill(kSpaces, static_cast<uint8_t>(CharClass::space));
    fill(kWordCharacters, kWordBit);
    for (int i = 0; i < kPages; ++i) {
      Page page;
      std::copy_n(flat.begin() + (i << kPageBits), page.size(), page.begin());
      size_t k = 0;
      while (k < pages_.size() && pages_[k] != page) ++k;
      if (k == pages_.size()) pages_.push_back(page);
      index_[i] = static_cast<uint8_t>(k);
    }
  }
  uint8_t at(char32_t c) const { return pages_[index_[c >> kPageBits]][c & 0xFF]; }

 private:
  using Page = std::array<uint8_t, 1 << kPageBits>;
  std::array<uint8_t, kPages> index_{};
  std::vector<Page> pages_;
};

const ClassTable& class_table() {
  static const ClassTable table;
  return table;
}

}  // namespace

CodePoint decode_utf8(const char* p, const char* end) {
  auto byte = [p](int i) { return static_cast<uint8_t>(p[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const int length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || end - p < length) return {};
  char32_t value = lead & (0x7F >> length);
  for (int i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    value = value << 6 | (byte(i) & 0x3F);
  }
  const bool overlong = (length == 3 && value < 0x800) || (length == 4 && value < 0x10000);
  const bool surrogate = value >= 0xD800 && value < 0xE000;
  if (overlong || surrogate || value >= kInvalidByte) return {};
  return {value, length};
}

CodePoint decode_utf8_before(const char* begin, const char* p) {
  for (int back = 1; back <= 4 && p - back >= begin; ++back) {
    CodePoint c = decode_utf8(p - back, p);
    if (c.value != kInvalidByte && c.length == back) return c;
  }
  return {};
}

void append_utf8(std::string& out, char32_t value) {
  if (value < 0x80) {
    out += static_cast<char>(value);
  } else if (value < 0x800) {
    out += static_cast<char>(0xC0 | value >> 6);
    out += static_cast<char>(0x80 | (value & 0x3F));
  } else if (value < 0x10000) {
    out += static_cast<char>(0xE0 | value >> 12);
    out += static_cast<char>(0x80 | (value >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (value & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | value >> 18);
    out += static_cast<char>(0x80 | (value >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (value >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (value & 0x3F));
  }
}

CharClass char_class(char32_t value) {
  return static_cast<CharClass>(class_table().at(value) & kClassMask);
}

bool is_word_character(char32_t value) {
  return class_table().at(value) & kWordBit;
}

}  // namespace trireme::text
