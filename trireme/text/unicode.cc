#include "trireme/text/unicode.h"

#include <algorithm>
#include <map>
#include <vector>

#include "trireme/text/code_set.h"
#include "trireme/text/page_table.h"

namespace trireme::text {
namespace {

struct CategoryRange {
  char32_t first, last;
  Category value;
};
struct GraphemeRange {
  char32_t first, last;
  Grapheme value;
};
struct ScriptRange {
  char32_t first, last;
  int value;
};
struct NamedRanges {
  std::string_view name;
  std::span<const CodeRange> ranges;
};

#include "trireme/text/unicode_ranges.inc"
#include "trireme/text/unicode_scripts.inc"

constexpr uint8_t kClassMask = 3, kWordBit = 4;

constexpr std::string_view kCategoryNames[] = {
    "Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps",
    "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co"};

CharClass class_of(Category category) {
  if (category >= Category::kLu && category <= Category::kLo) return CharClass::letter;
  if (category >= Category::kNd && category <= Category::kNo) return CharClass::number;
  return CharClass::other;
}

const PageTable<uint8_t>& class_table() {
  static const PageTable<uint8_t> table([](const auto& set) {
    for (const CategoryRange& range : kCategories) {
      const auto kind = static_cast<uint8_t>(class_of(range.value));
      set(range.first, range.last, [kind](uint8_t& bits) { bits |= kind; });
    }
    for (const CodeRange& range : kSpaces) {
      set(range.first, range.last,
          [](uint8_t& bits) { bits |= static_cast<uint8_t>(CharClass::space); });
    }
    for (const CodeRange& range : kWordCharacters) {
      set(range.first, range.last, [](uint8_t& bits) { bits |= kWordBit; });
    }
  });
  return table;
}

// A table with one value a range.
template <class Value, class Ranges>
PageTable<Value> value_table(const Ranges& ranges) {
  return PageTable<Value>([&](const auto& set) {
    for (const auto& range : ranges) {
      set(range.first, range.last,
          [&](Value& value) { value = static_cast<Value>(range.value); });
    }
  });
}

}  // namespace

CodePoint decode_utf8(const char* p, const char* end) {
  auto byte = [p](int i) { return static_cast<uint8_t>(p[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const int length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  const CodePoint invalid{kInvalidByte + lead, 1};
  if (lead < 0xC2 || lead > 0xF4 || end - p < length) return invalid;
  char32_t value = lead & (0x7F >> length);
  for (int i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return invalid;
    value = value << 6 | (byte(i) & 0x3F);
  }
  const bool overlong = (length == 3 && value < 0x800) || (length == 4 && value < 0x10000);
  const bool surrogate = value >= 0xD800 && value < 0xE000;
  if (overlong || surrogate || value >= kInvalidByte) return invalid;
  return {value, length};
}

CodePoint decode_utf8_before(const char* begin, const char* p) {
  for (int back = 1; back <= 4 && p - back >= begin; ++back) {
    CodePoint c = decode_utf8(p - back, p);
    if (c.value < kInvalidByte && c.length == back) return c;
  }
  return {kInvalidByte + static_cast<uint8_t>(p[-1]), 1};
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
  } else if (value >= kInvalidByte) {
    out += static_cast<char>(value - kInvalidByte);
  } else {
    out += static_cast<char>(0xF0 | value >> 18);
    out += static_cast<char>(0x80 | (value >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (value >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (value & 0x3F));
  }
}

int utf8_length(char32_t value) {
  if (value < 0x80 || value >= kInvalidByte) return 1;
  return value < 0x800 ? 2 : value < 0x10000 ? 3 : 4;
}

int64_t count_characters(std::string_view text) {
  int64_t count = 0;
  for (const char *p = text.data(), *end = p + text.size(); p < end; ++count) {
    p += decode_utf8(p, end).length;
  }
  return count;
}

bool is_utf8(std::string_view text) {
  for (const char *p = text.data(), *end = p + text.size(); p < end;) {
    const CodePoint c = decode_utf8(p, end);
    if (c.value >= kInvalidByte) return false;
    p += c.length;
  }
  return true;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  const char *p = text.data(), *end = p + text.size();
  while (p < end) {
    const CodePoint c = decode_utf8(p, end);
    if (c.value < kInvalidByte) {
      out.append(p, c.length);
      p += c.length;
      continue;
    }
    append_utf8(out, 0xFFFD);
    // The longest beginning of a character that could have gone on is one replacement.
    const auto lead = static_cast<uint8_t>(*p++);
    const int length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (lead < 0xC2 || lead > 0xF4) continue;
    for (int i = 1; i < length && p < end; ++i, ++p) {
      const auto byte = static_cast<uint8_t>(*p);
      uint8_t low = 0x80, high = 0xBF;
      if (i == 1) {
        if (lead == 0xE0) low = 0xA0;
        if (lead == 0xED) high = 0x9F;
        if (lead == 0xF0) low = 0x90;
        if (lead == 0xF4) high = 0x8F;
      }
      if (byte < low || byte > high) break;
    }
  }
  return out;
}

CharClass char_class(char32_t value) {
  return static_cast<CharClass>(class_table().at(value) & kClassMask);
}

bool is_word_character(char32_t value) {
  return class_table().at(value) & kWordBit;
}

Category category(char32_t value) {
  static const auto table = value_table<Category>(kCategories);
  return table.at(value);
}

uint16_t char_flags(char32_t value) {
  static const PageTable<uint16_t> table([](const auto& set) {
    auto add = [&](std::span<const CodeRange> ranges, uint16_t flag) {
      for (const CodeRange& range : ranges) {
        set(range.first, range.last, [flag](uint16_t& flags) { flags |= flag; });
      }
    };
    add(kPunctuationRanges, kPunctuation);
    add(kNumericRanges, kNumeric);
    add(kBertDroppedRanges, kBertDropped);
    add(kBertAccentRanges, kBertAccent);
    add(kMarkRanges, kMark);
    for (char32_t c = 0; c < kInvalidByte; ++c) {
      uint16_t flags = 0;
      const bool hangul = c >= 0xAC00 && c < 0xD7A4;
      if (hangul || !decomposition(c, false).empty()) flags |= kCanonical;
      if (hangul || !decomposition(c, true).empty()) flags |= kCompatible;
      if (lowercase(c).first != c || lowercase(c).second) flags |= kUppercase;
      if (combining_class(c)) flags |= kCombining;
      if (flags) set(c, c, [flags](uint16_t& all) { all |= flags; });
    }
  });
  return table.at(value);
}

int script_class(char32_t value) {
  static const auto table = value_table<uint8_t>(kScriptClasses);
  return table.at(value);
}

const char* grapheme_end(const char* p, const char* end) {
  static const auto table = value_table<Grapheme>(kGraphemes);
  auto next = [&](int& length) {
    const CodePoint c = decode_utf8(p, end);
    length = c.length;
    return c.value;
  };
  int length = 0;
  char32_t before = next(length);
  Grapheme kind = table.at(before);
  p += length;
  bool pictographic = kind == Grapheme::kPictographic;  // with Extends after it
  int regional = kind == Grapheme::kRegional ? 1 : 0;
  while (p < end) {
    const char32_t value = next(length);
    const Grapheme following = table.at(value);
    using enum Grapheme;
    bool joins = false;
    if (before == '\r' && value == '\n') {
      joins = true;
    } else if (kind == kControl || following == kControl) {
      joins = false;
    } else if (kind == kHangulL) {
      joins = following == kHangulL || following == kHangulV || following == kHangulLV ||
              following == kHangulLVT;
    } else if (kind == kHangulLV || kind == kHangulV) {
      joins = following == kHangulV || following == kHangulT;
    } else if (kind == kHangulLVT || kind == kHangulT) {
      joins = following == kHangulT;
    } else if (kind == kZwj && pictographic) {
      joins = following == kPictographic;
    } else if (kind == kRegional) {
      joins = following == kRegional && regional % 2 == 1;
    }
    if (kind != kControl && following != kControl) {
      joins |= following == kExtend || following == kZwj || following == kSpacingMark ||
               kind == kPrepend;
    }
    if (!joins) break;
    if (following == kPictographic) {
      pictographic = true;
    } else if (following != kExtend && following != kZwj) {
      pictographic = false;
    }
    if (following == kRegional) ++regional;
    kind = following;
    before = value;
    p += length;
  }
  return p;
}

std::span<const CodeRange> regex_class(std::string_view name) {
  static const auto categories = [] {
    std::map<std::string_view, std::vector<CodeRange>> classes;
    for (const CategoryRange& range : kCategories) {
      const std::string_view full = kCategoryNames[static_cast<int>(range.value)];
      for (std::string_view key : {full, full.substr(0, 1)}) {
        auto& ranges = classes[key];
        if (!ranges.empty() && ranges.back().last + 1 == range.first) {
          ranges.back().last = range.last;
        } else {
          ranges.push_back({range.first, range.last});
        }
      }
    }
    CodeSet all, &control = classes["C"], &unassigned = classes["Cn"];
    for (const CategoryRange& range : kCategories) all.push_back({range.first, range.last});
    unassigned = complement(united(std::move(all)));
    control.insert(control.end(), unassigned.begin(), unassigned.end());
    control = united(std::move(control));
    return classes;
  }();
  if (auto found = categories.find(name); found != categories.end()) return found->second;
  if (name == "word") return kRegexWordCharacters;
  if (name == "word in a class") {
    // There the superscripts and fractions of Latin-1 are no word characters.
    static const auto inside = [] {
      std::vector<CodeRange> ranges;
      for (CodeRange range : kRegexWordCharacters) {
        if (range.first == 0xB2 || range.first == 0xBC) continue;
        if (range.first == 0xB9) range.first = 0xBA;
        ranges.push_back(range);
      }
      return ranges;
    }();
    return inside;
  }
  if (name == "space") return kSpaces;
  if (name == "punct") return kRegexPunctuation;
  if (name == "alpha") return kRegexAlphabetic;
  for (const NamedRanges& script : kScripts) {
    if (script.name == name) return script.ranges;
  }
  return {};
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  if (from.empty()) {  // between all characters and at both ends, as Rust's str::replace does
    std::string out(to);
    for (const char *p = text.data(), *end = p + text.size(); p < end;) {
      const int length = decode_utf8(p, end).length;
      out.append(p, length).append(to);
      p += length;
    }
    text = std::move(out);
    return;
  }
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

}  // namespace trireme::text
