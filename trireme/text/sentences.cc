#include "trireme/text/sentences.h"

#include <algorithm>
#include <array>
#include <string>

#include "trireme/text/unicode.h"

namespace trireme::text {
namespace {

// Lowercase, without the last stop; those with stops inside ("e.g") are matched with them.
constexpr auto kAbbreviations = std::to_array<std::string_view>(
    {"al",   "apr", "aug", "ave", "bros", "cf",  "ch",  "co",  "col", "corp", "dec",
     "dept", "dr",  "e.g", "ed",  "eds",  "eq",  "est", "feb", "fig", "figs", "gen",
     "gov",  "hon", "i.e", "inc", "jan",  "jr",  "jul", "jun", "lt",  "ltd",  "mar",
     "mr",   "mrs", "ms",  "mt",  "nos",  "nov", "oct", "p",   "pp",  "prof", "rep",
     "rev",  "sec", "sen", "sep", "sept", "sgt", "sr",  "st",  "vol", "vs"});

bool is_stop(char32_t c) {
  return c == '.' || c == '!' || c == '?' || c == 0x2026;
}
bool is_wide_stop(char32_t c) {
  return c == 0x3002 || c == 0xFF01 || c == 0xFF1F || c == 0xFF0E || c == 0xFF61;
}
bool is_closing(char32_t c) {
  const Category category = text::category(c);
  return c == '"' || c == '\'' || category == Category::kPe || category == Category::kPf ||
         category == Category::kPi;
}

/// Whether the stop behind `before` (the text up to it) ends no sentence.
bool is_abbreviation(std::string_view before) {
  size_t begin = before.size();
  while (begin > 0 && static_cast<unsigned char>(before[begin - 1]) > ' ') --begin;
  std::string word(before.substr(begin));
  while (!word.empty() && (word[0] == '(' || word[0] == '"' || word[0] == '\'' || word[0] == '['))
    word.erase(0, 1);
  if (word.empty()) return false;
  if (word.size() == 1 && word[0] >= 'A' && word[0] <= 'Z' && word != "I")
    return true;  // an initial
  const bool number = std::ranges::all_of(word, [](char c) { return c >= '0' && c <= '9'; });
  // "1. First" at the start of a line is an item of a list; "in 1999. Then" ends a sentence.
  if (number && word.size() <= 2 && (begin == 0 || before[begin - 1] == '\n')) return true;
  for (char& c : word)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return std::ranges::binary_search(kAbbreviations, std::string_view(word));
}

std::string_view trimmed(std::string_view text) {
  const char *begin = text.data(), *end = begin + text.size();
  while (begin < end) {
    const CodePoint c = decode_utf8(begin, end);
    if (!is_space(c.value)) break;
    begin += c.length;
  }
  while (begin < end) {
    const CodePoint c = decode_utf8_before(begin, end);
    if (!is_space(c.value)) break;
    end -= c.length;
  }
  return {begin, static_cast<size_t>(end - begin)};
}

}  // namespace

std::vector<std::string_view> split_sentences(std::string_view text) {
  static_assert(std::ranges::is_sorted(kAbbreviations));
  std::vector<std::string_view> sentences;
  const char *begin = text.data(), *const end = begin + text.size();
  const auto cut = [&](const char* at) {
    const std::string_view sentence = trimmed({begin, static_cast<size_t>(at - begin)});
    if (!sentence.empty()) sentences.push_back(sentence);
    begin = at;
  };
  for (const char* p = begin; p < end;) {
    const CodePoint c = decode_utf8(p, end);
    const char* next = p + c.length;
    if (c.value == '\n') {
      const char* line = next;
      while (line < end && (*line == ' ' || *line == '\t' || *line == '\r')) ++line;
      if (line < end && *line == '\n') cut(next);
      p = next;
      continue;
    }
    const bool wide = is_wide_stop(c.value);
    if (!wide && !is_stop(c.value)) {
      p = next;
      continue;
    }
    const char* after = next;  // behind further stops and what closes
    while (after < end) {
      const CodePoint d = decode_utf8(after, end);
      if (!is_stop(d.value) && !is_wide_stop(d.value) && !is_closing(d.value)) break;
      after += d.length;
    }
    const char* follows = after;
    while (follows < end && is_space(decode_utf8(follows, end).value))
      follows += decode_utf8(follows, end).length;
    const bool spaced = follows > after || follows == end;
    const bool lowercase =
        follows < end && category(decode_utf8(follows, end).value) == Category::kLl;
    const bool short_form =
        c.value == '.' && after == next && is_abbreviation({begin, static_cast<size_t>(p - begin)});
    if (wide || (spaced && !lowercase && !short_form)) cut(after);
    p = after;
  }
  cut(end);
  return sentences;
}

}  // namespace trireme::text
