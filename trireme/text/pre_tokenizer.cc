#include "trireme/text/pre_tokenizer.h"

#include <algorithm>

#include "trireme/text/byte_alphabet.h"
#include "trireme/text/json_node.h"
#include "trireme/text/normalizer.h"

namespace trireme::text {
namespace {

using P = PreTokenizer;

struct Segment {
  size_t begin, end;  // within the piece
  bool match;
};

// All of a text as segments, from its matches in order.
class Segments {
 public:
  Segments(std::string_view text, bool invert) : text_(text), invert_(invert) {}
  void match(size_t begin, size_t end) {
    gap(begin);
    list_.push_back({begin, end, !invert_});
    at_ = end;
  }
  std::vector<Segment> finish() {
    gap(text_.size());
    return std::move(list_);
  }

 private:
  void gap(size_t end) {
    if (at_ < end) list_.push_back({at_, end, invert_});
    at_ = end;
  }
  std::string_view text_;
  bool invert_;
  size_t at_ = 0;
  std::vector<Segment> list_;
};

template <class Is>
std::vector<Segment> by_character(std::string_view text, const Is& is) {
  Segments segments(text, false);
  const char *begin = text.data(), *end = begin + text.size();
  for (const char* p = begin; p < end;) {
    const CodePoint c = decode_utf8(p, end);
    const size_t at = p - begin;
    if (is(c.value)) segments.match(at, at + c.length);
    p += c.length;
  }
  return segments.finish();
}

// The pieces that a behavior makes of segments; those that go are empty.
std::vector<Segment> behave(std::vector<Segment> segments, SplitBehavior behavior) {
  std::vector<Segment> out;
  bool previous = false;
  switch (behavior) {
    case SplitBehavior::isolated:
      return segments;
    case SplitBehavior::removed:
      std::erase_if(segments, [](const Segment& s) { return s.match; });
      return segments;
    case SplitBehavior::contiguous:
      for (const Segment& s : segments) {
        if (s.match == previous && !out.empty()) {
          out.back().end = s.end;
        } else {
          out.push_back(s);
        }
        previous = s.match;
      }
      return out;
    case SplitBehavior::merged_with_previous:
      for (const Segment& s : segments) {
        if (s.match && !previous && !out.empty()) {
          out.back().end = s.end;
        } else {
          out.push_back(s);
        }
        previous = s.match;
      }
      return out;
    case SplitBehavior::merged_with_next:
      std::reverse(segments.begin(), segments.end());
      for (const Segment& s : segments) {
        if (s.match && !previous && !out.empty()) {
          out.back().begin = s.begin;
        } else {
          out.push_back(s);
        }
        previous = s.match;
      }
      std::reverse(out.begin(), out.end());
      return out;
  }
  return out;
}

void cut(const Piece& piece, const std::vector<Segment>& segments, std::vector<Piece>& out) {
  for (const Segment& s : segments) {
    if (s.begin == s.end) continue;
    out.push_back({piece.text, piece.begin + s.begin, piece.begin + s.end, -1});
  }
}

Piece whole(const NormalizedText* text) {
  return {text, 0, text->size(), -1};
}

bool is_space_character(char32_t c) {
  return is_space(c);
}

std::vector<Segment> pattern_segments(std::string_view text, WordPattern pattern, bool invert) {
  Segments segments(text, invert);
  const char *begin = text.data(), *end = begin + text.size();
  for (const char* p = begin; p < end;) {
    const char* next = word_end(pattern, p, end);
    segments.match(p - begin, next - begin);
    p = next;
  }
  return segments.finish();
}

void run(const P::ByteLevel& step, const Piece& piece, Pieces& pieces, std::vector<Piece>& out) {
  NormalizedText text(*piece.text, piece.begin, piece.end);
  if (step.add_prefix_space && !text.view().starts_with(' ')) text.prepend(" ");
  if (!step.use_regex) {
    to_byte_alphabet(text);
    out.push_back(whole(pieces.own(std::move(text))));
    return;
  }
  for (const Segment& s : pattern_segments(text.view(), WordPattern::gpt2, false)) {
    NormalizedText word(text, s.begin, s.end);
    to_byte_alphabet(word);
    out.push_back(whole(pieces.own(std::move(word))));
  }
}

void run(const P::Split& step, const Piece& piece, Pieces&, std::vector<Piece>& out) {
  const std::string_view text = piece.view();
  std::vector<Segment> segments;
  if (step.known) {
    segments = pattern_segments(text, *step.known, step.invert);
  } else {
    Segments found(text, step.invert);
    if (step.pattern.regex) {
      step.pattern.regex->for_each_match(text, [&](size_t begin, size_t end) { found.match(begin, end); });
    } else {
      for (const auto& range : find_literal(text, step.pattern.literal)) {
        found.match(range.begin, range.end);
      }
    }
    segments = found.finish();
  }
  cut(piece, behave(std::move(segments), step.behavior), out);
}

void run(const P::Metaspace& step, const Piece& piece, Pieces& pieces, std::vector<Piece>& out) {
  std::string replacement;
  append_utf8(replacement, step.replacement);
  NormalizedText text(*piece.text, piece.begin, piece.end);
  text.replace(find_literal(text.view(), " "), replacement);
  using enum P::Metaspace::Prepend;
  const bool prepends =
      step.prepend == always || (step.prepend == first && text.original_begin() == 0);
  if (prepends && !text.view().starts_with(replacement)) text.prepend(replacement);
  const Piece all = whole(pieces.own(std::move(text)));
  if (!step.split) {
    out.push_back(all);
    return;
  }
  auto segments = by_character(all.view(), [&](char32_t c) { return c == step.replacement; });
  cut(all, behave(std::move(segments), SplitBehavior::merged_with_next), out);
}

void run(const P::Bert&, const Piece& piece, Pieces&, std::vector<Piece>& out) {
  const auto words = behave(by_character(piece.view(), is_space_character), SplitBehavior::removed);
  for (const Segment& word : words) {
    const Piece part{piece.text, piece.begin + word.begin, piece.begin + word.end, -1};
    cut(part,
        by_character(part.view(), [](char32_t c) { return char_flags(c) & kPunctuation; }), out);
  }
}

void run(const P::Whitespace&, const Piece& piece, Pieces&, std::vector<Piece>& out) {
  const std::string_view text = piece.view();
  const char *begin = text.data(), *end = begin + text.size();
  enum Kind { space, word, other };
  auto kind_of = [](char32_t c) {
    return is_word_character(c) ? word : is_space(c) ? space : other;
  };
  for (const char* p = begin; p < end;) {
    const CodePoint first = decode_utf8(p, end);
    const Kind kind = kind_of(first.value);
    const char* q = p + first.length;
    while (q < end) {
      const CodePoint c = decode_utf8(q, end);
      if (kind_of(c.value) != kind) break;
      q += c.length;
    }
    if (kind != space) {
      out.push_back({piece.text, piece.begin + (p - begin), piece.begin + (q - begin), -1});
    }
    p = q;
  }
}

void run(const P::WhitespaceSplit&, const Piece& piece, Pieces&, std::vector<Piece>& out) {
  cut(piece, behave(by_character(piece.view(), is_space_character), SplitBehavior::removed), out);
}

void run(const P::Punctuation& step, const Piece& piece, Pieces&, std::vector<Piece>& out) {
  auto segments =
      by_character(piece.view(), [](char32_t c) { return char_flags(c) & kPunctuation; });
  cut(piece, behave(std::move(segments), step.behavior), out);
}

void run(const P::Digits& step, const Piece& piece, Pieces&, std::vector<Piece>& out) {
  auto segments = by_character(piece.view(), [](char32_t c) { return char_flags(c) & kNumeric; });
  cut(piece,
      behave(std::move(segments),
             step.individual ? SplitBehavior::isolated : SplitBehavior::contiguous),
      out);
}

void run(const P::CharDelimiterSplit& step, const Piece& piece, Pieces&, std::vector<Piece>& out) {
  auto segments = by_character(piece.view(), [&](char32_t c) { return c == step.delimiter; });
  cut(piece, behave(std::move(segments), SplitBehavior::removed), out);
}

void run(const P::UnicodeScripts&, const Piece& piece, Pieces&, std::vector<Piece>& out) {
  const std::string_view text = piece.view();
  const char *begin = text.data(), *end = begin + text.size();
  int last = -1;
  size_t start = SIZE_MAX;
  for (const char* p = begin; p < end;) {
    const CodePoint c = decode_utf8(p, end);
    const int script = script_class(c.value);
    const size_t at = p - begin;
    if (script != 0 && script != last) {
      if (start != SIZE_MAX) out.push_back({piece.text, piece.begin + start, piece.begin + at, -1});
      start = at;
      last = script;
    }
    p += c.length;
  }
  // Characters of every script before the first of one script belong to no piece.
  if (start != SIZE_MAX) out.push_back({piece.text, piece.begin + start, piece.end, -1});
}

void run(const P::FixedLength& step, const Piece& piece, Pieces&, std::vector<Piece>& out) {
  const std::string_view text = piece.view();
  const char *begin = text.data(), *end = begin + text.size();
  for (const char* p = begin; p < end;) {
    const char* q = p;
    for (int64_t i = 0; i < step.length && q < end; ++i) q += decode_utf8(q, end).length;
    out.push_back({piece.text, piece.begin + (p - begin), piece.begin + (q - begin), -1});
    p = q;
  }
}

SplitBehavior read_behavior(const Node& node) {
  const std::string_view name = node.text();
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  node.unsupported(fmt::format("behavior \"{}\"", name));
}

char32_t read_character(const Node& node) {
  const std::string_view text = node.text();
  const CodePoint c = text.empty() ? CodePoint{} : decode_utf8(text.data(), text.data() + text.size());
  if (text.empty() || static_cast<size_t>(c.length) != text.size()) {
    node.fail(fmt::format("\"{}\" is not one character", text));
  }
  return c.value;
}

P::Split read_split(const Node& node) {
  P::Split step{.known = {},
                .pattern = {},
                .behavior = read_behavior(node.at("behavior")),
                .invert = node.flag("invert", false)};
  const Node pattern = node.at("pattern");
  if (auto regex = pattern.find("Regex")) step.known = known_pattern(regex->text());
  if (!step.known) step.pattern = read_pattern(pattern);
  return step;
}

P::Metaspace read_metaspace(const Node& node) {
  using enum P::Metaspace::Prepend;
  P::Metaspace step{.replacement = read_character(node.at("replacement")),
                    .prepend = always,
                    .split = node.flag("split", true)};
  if (auto scheme = node.find("prepend_scheme")) {
    const std::string_view name = scheme->text();
    if (name != "always" && name != "first" && name != "never") {
      scheme->unsupported(fmt::format("prepend_scheme \"{}\"", name));
    }
    step.prepend = name == "always" ? always : name == "first" ? first : never;
  } else if (!node.flag("add_prefix_space", true)) {
    step.prepend = never;
  }
  return step;
}

// Whether a step cuts before a single space that is written `space`.
bool cuts_at_space(const P::Step& step, std::string_view space) {
  const bool plain = space == " ";
  if (const auto* s = std::get_if<P::ByteLevel>(&step)) return plain && s->use_regex;
  if (const auto* s = std::get_if<P::Metaspace>(&step)) {
    std::string replacement;
    append_utf8(replacement, s->replacement);
    return s->split && (plain || space == replacement);
  }
  if (const auto* s = std::get_if<P::Split>(&step)) {
    if (s->known) {
      return plain && (s->behavior == SplitBehavior::isolated ||
                       (s->behavior == SplitBehavior::removed && s->invert));
    }
    return !s->pattern.regex && s->pattern.literal == space && !s->invert &&
           s->behavior != SplitBehavior::merged_with_previous;
  }
  if (const auto* s = std::get_if<P::CharDelimiterSplit>(&step)) return plain && s->delimiter == ' ';
  return plain && (std::holds_alternative<P::Bert>(step) ||
                   std::holds_alternative<P::Whitespace>(step) ||
                   std::holds_alternative<P::WhitespaceSplit>(step));
}

}  // namespace

PreTokenizer::PreTokenizer(const Node& node) {
  add(node, 0);
}

void PreTokenizer::add(const Node& node, int depth) {
  node.check_depth(depth);
  const std::string_view type = node.type();
  if (type == "Sequence") {
    for (const Node& step : node.at("pretokenizers").items()) add(step, depth + 1);
  } else if (type == "ByteLevel") {
    steps_.push_back(
        ByteLevel{node.at("add_prefix_space").boolean(), node.flag("use_regex", true)});
  } else if (type == "Split") {
    steps_.push_back(read_split(node));
  } else if (type == "Metaspace") {
    steps_.push_back(read_metaspace(node));
  } else if (type == "BertPreTokenizer") {
    steps_.push_back(Bert{});
  } else if (type == "Whitespace") {
    steps_.push_back(Whitespace{});
  } else if (type == "WhitespaceSplit") {
    steps_.push_back(WhitespaceSplit{});
  } else if (type == "Punctuation") {
    auto behavior = node.find("behavior");
    steps_.push_back(Punctuation{behavior ? read_behavior(*behavior) : SplitBehavior::isolated});
  } else if (type == "Digits") {
    steps_.push_back(Digits{node.at("individual_digits").boolean()});
  } else if (type == "CharDelimiterSplit") {
    steps_.push_back(CharDelimiterSplit{read_character(node.at("delimiter"))});
  } else if (type == "UnicodeScripts") {
    steps_.push_back(UnicodeScripts{});
  } else if (type == "FixedLength") {
    auto length = node.find("length");
    steps_.push_back(FixedLength{length ? length->integer(1, INT32_MAX) : 5});
  } else {
    node.unsupported(fmt::format("pre-tokenizer \"{}\"", type));
  }
}

void PreTokenizer::apply(Pieces& pieces) const {
  for (const Step& step : steps_) {
    std::vector<Piece> before = std::move(pieces.list);
    pieces.list.clear();
    pieces.list.reserve(before.size());
    for (const Piece& piece : before) {
      if (piece.added >= 0) {
        pieces.list.push_back(piece);
      } else {
        std::visit([&](const auto& s) { run(s, piece, pieces, pieces.list); }, step);
      }
    }
  }
}

bool PreTokenizer::local(std::string_view space) const {
  for (const Step& step : steps_) {
    if (cuts_at_space(step, space)) return true;
    // These look at single characters and leave spaces where they are.
    if (!std::holds_alternative<Punctuation>(step) && !std::holds_alternative<Digits>(step)) {
      return false;
    }
  }
  return false;
}

bool PreTokenizer::drops_spaces(std::string_view space) const {
  for (const Step& step : steps_) {
    if (std::holds_alternative<Bert>(step) || std::holds_alternative<Whitespace>(step) ||
        std::holds_alternative<WhitespaceSplit>(step)) {
      return space == " ";
    }
    if (!std::holds_alternative<Punctuation>(step) && !std::holds_alternative<Digits>(step)) break;
  }
  return false;
}

bool PreTokenizer::splits_nothing(std::string_view space) const {
  return std::all_of(steps_.begin(), steps_.end(), [&](const Step& step) {
    if (const auto* s = std::get_if<Metaspace>(&step)) return !s->split && space != " ";
    const auto* s = std::get_if<Split>(&step);
    return s && !s->known && !s->pattern.regex && s->pattern.literal == " " && !s->invert && space != " ";
  });
}

bool PreTokenizer::marks_beginning() const {
  return std::any_of(steps_.begin(), steps_.end(), [](const Step& step) {
    if (const auto* s = std::get_if<ByteLevel>(&step)) return s->add_prefix_space;
    if (const auto* s = std::get_if<Metaspace>(&step)) {
      return s->prepend != Metaspace::Prepend::never;
    }
    return false;
  });
}

const char* plain_word_end(const char* p, const char* end) {
  auto is_printable = [](char c) { return c > ' ' && c < 0x7F; };
  for (const char* q = p + 1; q + 1 < end; ++q) {
    if (*q == ' ' && is_printable(q[-1]) && is_printable(q[1])) return q;
  }
  return end;
}

}  // namespace trireme::text
