#include "trireme/text/normalizer.h"

#include <algorithm>

#include "trireme/text/byte_alphabet.h"
#include "trireme/text/json_node.h"

namespace trireme::text {
namespace {

bool has_flag(std::string_view text, uint16_t flag) {
  for (const char *p = text.data(), *end = p + text.size(); p < end;) {
    if (static_cast<uint8_t>(*p) < 0x80 && flag != kUppercase) {
      ++p;
      continue;
    }
    const CodePoint c = decode_utf8(p, end);
    if (char_flags(c.value) & flag) return true;
    p += c.length;
  }
  return false;
}

bool is_chinese(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
         (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
         (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

void to_lowercase(NormalizedText& text) {
  if (!has_flag(text.view(), kUppercase)) return;
  NormalizedText::Rewriter out(text);
  const std::string old(text.view());
  for (const char *p = old.data(), *end = p + old.size(); p < end;) {
    const CodePoint c = decode_utf8(p, end);
    const Lowercase lower = lowercase(c.value);
    out.put(lower.first, 0);
    if (lower.second) out.put(lower.second, 1);
    p += c.length;
  }
  out.finish();
}

struct Marked {
  char32_t value;
  int64_t change;
  uint8_t combining;
};

void decompose(char32_t value, bool compatible, std::vector<Marked>& out) {
  if (value >= 0xAC00 && value < 0xD7A4) {
    const char32_t s = value - 0xAC00;
    out.push_back({0x1100 + s / 588, 0, 0});
    out.push_back({0x1161 + s % 588 / 28, 1, 0});
    if (s % 28) out.push_back({0x11A7 + s % 28, 1, 0});
    return;
  }
  const std::u32string_view parts = decomposition(value, compatible);
  if (parts.empty()) {
    out.push_back({value, 0, combining_class(value)});
    return;
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    out.push_back({parts[i], i > 0 ? 1 : 0, combining_class(parts[i])});
  }
}

// Composes a decomposed text. A composed character drops the parts it took in; a part that its own
// decomposition had inserted is no loss.
void recompose(std::vector<Marked>& characters) {
  std::vector<Marked> out;
  out.reserve(characters.size());
  size_t starter = SIZE_MAX;  // index in out
  uint8_t last = 0;           // combining class of the latest character after the starter
  bool adjacent = true;       // nothing stands between the starter and here
  for (const Marked& c : characters) {
    if (starter != SIZE_MAX && (adjacent || last < c.combining)) {
      if (const char32_t composed = compose(out[starter].value, c.value)) {
        out[starter].value = composed;
        out[starter].change += c.change - 1;
        continue;
      }
    }
    out.push_back(c);
    if (c.combining == 0) {
      starter = out.size() - 1;
      adjacent = true;
    } else {
      adjacent = false;
    }
    last = c.combining;
  }
  characters = std::move(out);
}

}  // namespace

void normalize_unicode(NormalizedText& text, UnicodeForm form) {
  const bool compatible = form == UnicodeForm::nfkc || form == UnicodeForm::nfkd;
  const bool composes = form == UnicodeForm::nfc || form == UnicodeForm::nfkc;
  const std::string old(text.view());
  if (std::all_of(old.begin(), old.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; }))
    return;
  std::vector<Marked> characters;
  characters.reserve(old.size());
  size_t run = 0;  // where the latest run of marks begins
  auto sort_marks = [&] {
    std::stable_sort(characters.begin() + static_cast<int64_t>(run), characters.end(),
                     [](const Marked& a, const Marked& b) { return a.combining < b.combining; });
  };
  for (const char *p = old.data(), *end = p + old.size(); p < end;) {
    const CodePoint c = decode_utf8(p, end);
    p += c.length;
    const size_t before = characters.size();
    decompose(c.value, compatible, characters);
    for (size_t i = before; i < characters.size(); ++i) {
      if (characters[i].combining != 0) continue;
      std::stable_sort(characters.begin() + static_cast<int64_t>(run),
                       characters.begin() + static_cast<int64_t>(i),
                       [](const Marked& a, const Marked& b) { return a.combining < b.combining; });
      run = i + 1;
    }
  }
  sort_marks();
  if (composes) recompose(characters);
  NormalizedText::Rewriter out(text);
  for (const Marked& c : characters) out.put(c.value, c.change);
  out.finish();
}

void to_byte_alphabet(NormalizedText& text) {
  NormalizedText::Rewriter out(text);
  const std::string old(text.view());
  for (const char *p = old.data(), *end = p + old.size(); p < end;) {
    const int length = decode_utf8(p, end).length;
    for (int i = 0; i < length; ++i) {
      out.put(alphabet_char(static_cast<uint8_t>(p[i])), i > 0 ? 1 : 0);
    }
    p += length;
  }
  out.finish();
}

std::vector<NormalizedText::Range> find_literal(std::string_view text, std::string_view literal) {
  std::vector<NormalizedText::Range> ranges;
  if (literal.empty()) return ranges;
  for (size_t at = text.find(literal); at != std::string_view::npos;
       at = text.find(literal, at + literal.size())) {
    ranges.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(at + literal.size())});
  }
  return ranges;
}

Normalizer::Normalizer(const Node& node) {
  add(node, 0);
}

void Normalizer::add(const Node& node, int depth) {
  node.check_depth(depth);
  const std::string_view type = node.type();
  if (type == "Sequence") {
    for (const Node& step : node.at("normalizers").items()) add(step, depth + 1);
  } else if (type == "BertNormalizer") {
    const bool lower = node.at("lowercase").boolean();
    steps_.push_back(Bert{node.at("clean_text").boolean(), node.at("handle_chinese_chars").boolean(),
                          node.flag("strip_accents", lower), lower});
  } else if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    steps_.push_back(type == "NFC"    ? UnicodeForm::nfc
                     : type == "NFD"  ? UnicodeForm::nfd
                     : type == "NFKC" ? UnicodeForm::nfkc
                                      : UnicodeForm::nfkd);
  } else if (type == "Lowercase") {
    steps_.push_back(LowercaseStep{});
  } else if (type == "StripAccents") {
    steps_.push_back(StripAccents{});
  } else if (type == "Nmt") {
    steps_.push_back(Nmt{});
  } else if (type == "ByteLevel") {
    steps_.push_back(ByteLevel{});
  } else if (type == "Strip") {
    steps_.push_back(Strip{node.at("strip_left").boolean(), node.at("strip_right").boolean()});
  } else if (type == "Prepend") {
    steps_.push_back(Prepend{std::string(node.at("prepend").text())});
  } else if (type == "Replace") {
    steps_.push_back(Replace{read_pattern(node.at("pattern")), std::string(node.at("content").text())});
  } else if (type == "Precompiled") {
    const Node map = node.at("precompiled_charsmap");
    steps_.push_back(map.here(
        [&] { return std::make_shared<const Charsmap>(decode_base64(map.text())); }));
  } else {
    node.unsupported(fmt::format("normalizer \"{}\"", type));
  }
}

void Normalizer::apply(NormalizedText& text, bool beginning) const {
  for (const Step& step : steps_) {
    if (!beginning && std::holds_alternative<Prepend>(step)) continue;
    std::visit([&](const auto& s) { run(s, text); }, step);
  }
}

bool Normalizer::local() const {
  for (const Step& step : steps_) {
    if (std::holds_alternative<Strip>(step)) return false;
    if (const auto* replace = std::get_if<Replace>(&step)) {
      // A literal of one space, or one without any, cannot reach across a cut.
      const auto& [literal, regex] = replace->pattern;
      if (regex || (literal != " " && literal.find(' ') != std::string::npos)) return false;
    }
  }
  return true;
}

bool Normalizer::keeps_whitespace() const {
  return std::all_of(steps_.begin(), steps_.end(), [](const Step& step) {
    if (const auto* map = std::get_if<Precompiled>(&step)) {
      for (std::string_view c : {" ", "\t", "\n", "\r", "\r\n"}) {
        if (const auto found = (*map)->find(c); found && *found != " ") return false;
      }
      return true;
    }
    return !std::holds_alternative<Replace>(step) && !std::holds_alternative<Prepend>(step) &&
           !std::holds_alternative<Strip>(step) && !std::holds_alternative<ByteLevel>(step);
  });
}

bool Normalizer::marks_beginning() const {
  return std::any_of(steps_.begin(), steps_.end(),
                     [](const Step& step) { return std::holds_alternative<Prepend>(step); });
}

std::string Normalizer::space() const {
  NormalizedText text("a a", 0, 3);
  apply(text);
  const size_t last = text.view().rfind('a');
  const std::string_view head = text.view().substr(0, last);
  const size_t first = head.rfind('a');
  return std::string(first == std::string_view::npos ? head : head.substr(first + 1));
}

void Normalizer::run(const Bert& step, NormalizedText& text) {
  if (step.clean_text) {
    text.filter([](char32_t c) {
      return c < kInvalidByte && !(char_flags(c) & kBertDropped);
    });
    bool other_spaces = false;
    const std::string_view view = text.view();
    for (const char *p = view.data(), *end = p + view.size(); p < end && !other_spaces;) {
      const CodePoint c = decode_utf8(p, end);
      other_spaces = c.value != ' ' && is_space(c.value);
      p += c.length;
    }
    if (other_spaces) text.map([](char32_t c) { return is_space(c) ? U' ' : c; });
  }
  if (step.chinese) {
    const std::string old(text.view());
    bool changed = false;
    NormalizedText::Rewriter out(text);
    for (const char *p = old.data(), *end = p + old.size(); p < end;) {
      const CodePoint c = decode_utf8(p, end);
      p += c.length;
      if (!is_chinese(c.value)) {
        out.put(c.value, 0);
        continue;
      }
      changed = true;
      out.put(' ', 0);
      out.put(c.value, 1);
      out.put(' ', 1);
    }
    if (changed) out.finish();
  }
  if (step.strip_accents) {
    normalize_unicode(text, UnicodeForm::nfd);
    text.filter([](char32_t c) { return !(char_flags(c) & kBertAccent); });
  }
  if (step.lowercase) to_lowercase(text);
}

void Normalizer::run(const Replace& step, NormalizedText& text) {
  std::vector<NormalizedText::Range> ranges;
  if (step.pattern.regex) {
    step.pattern.regex->for_each_match(text.view(), [&](size_t begin, size_t end) {
      ranges.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(end)});
    });
  } else {
    ranges = find_literal(text.view(), step.pattern.literal);
  }
  text.replace(ranges, step.content);
}

void Normalizer::run(LowercaseStep, NormalizedText& text) {
  to_lowercase(text);
}

void Normalizer::run(StripAccents, NormalizedText& text) {
  text.filter([](char32_t c) { return !(char_flags(c) & kMark); });
}

void Normalizer::run(Nmt, NormalizedText& text) {
  text.filter([](char32_t c) {
    return !((c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F ||
             c == 0x8F || c == 0x9F);
  });
  text.map([](char32_t c) -> char32_t {
    const bool space = c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 ||
                       (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                       c == 0xFEFF || c == 0xFFFD;
    return space ? U' ' : c;
  });
}

void Normalizer::run(ByteLevel, NormalizedText& text) {
  to_byte_alphabet(text);
}

}  // namespace trireme::text
