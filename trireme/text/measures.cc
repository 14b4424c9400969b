#include "trireme/text/measures.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>

#include "trireme/base/error.h"
#include "trireme/text/unicode.h"

namespace trireme::text {
namespace {

using Words = std::vector<std::string>;

constexpr int kOrder = 4;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}
bool is_upper(char c) {
  return c >= 'A' && c <= 'Z';
}
bool is_lower(char c) {
  return c >= 'a' && c <= 'z';
}
bool is_punctuation(char c) {
  return c > ' ' && c < 127 && !is_digit(c) && !is_upper(c) && !is_lower(c);
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (is_upper(c)) c = static_cast<char>(c - 'A' + 'a');
  return out;
}

Words split_words(std::string_view text) {
  Words words;
  for (size_t i = 0; i < text.size();) {
    if (is_space(text[i])) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < text.size() && !is_space(text[end])) ++end;
    words.emplace_back(text.substr(i, end - i));
    i = end;
  }
  return words;
}

/// Writes spaces into each pair of neighbours of which `first` and `second` hold; pairs do not
/// overlap.
std::string part_pairs(const std::string& text, const std::function<bool(char)>& first,
                       const std::function<bool(char)>& second, bool space_before) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (i + 1 == text.size() || !first(text[i]) || !second(text[i + 1])) {
      out += text[i];
      continue;
    }
    if (space_before) out += ' ';
    out += text[i];
    out += ' ';
    out += text[++i];
    if (!space_before) out += ' ';
  }
  return out;
}

/// mteval-v13a's tokens.
Words tokens_13a(std::string text) {
  replace_all(text, "<skipped>", "");
  replace_all(text, "-\n", "");
  replace_all(text, "\n", " ");
  for (const auto& [code, sign] :
       {std::pair{"&quot;", "\""}, {"&amp;", "&"}, {"&lt;", "<"}, {"&gt;", ">"}})
    replace_all(text, code, sign);
  std::string apart = " ";
  for (char c : text) {
    const bool alone = is_punctuation(c) && c != '\'' && c != ',' && c != '-' && c != '.';
    apart += alone ? std::string{' ', c, ' '} : std::string{c};
  }
  apart += ' ';
  auto stop = [](char c) { return c == '.' || c == ','; };
  auto no_digit = [](char c) { return !is_digit(c); };
  apart = part_pairs(apart, no_digit, stop, false);
  apart = part_pairs(apart, stop, no_digit, true);
  apart = part_pairs(
      apart, is_digit, [](char c) { return c == '-'; }, false);
  return split_words(apart);
}

using Counts = std::map<Words, int64_t>;

Counts ngrams(const Words& words, int n) {
  Counts counts;
  for (size_t i = 0; i + n <= words.size(); ++i)
    ++counts[Words(words.begin() + i, words.begin() + i + n)];
  return counts;
}

int64_t shared(const Counts& a, const Counts& b) {
  int64_t sum = 0;
  for (const auto& [words, count] : a)
    if (auto it = b.find(words); it != b.end()) sum += std::min(count, it->second);
  return sum;
}

Overlap overlap_of(double common, double of_hypothesis, double of_reference) {
  Overlap overlap{.precision = common / std::max(of_hypothesis, 1.0),
                  .recall = common / std::max(of_reference, 1.0)};
  if (common > 0)
    overlap.f1 = 2 * overlap.precision * overlap.recall / (overlap.precision + overlap.recall);
  return overlap;
}

Words rouge_words(std::string_view text) {
  std::string plain = lower(text);
  for (char& c : plain)
    if (!is_lower(c) && !is_digit(c)) c = ' ';
  return split_words(plain);
}

Words answer_words(std::string_view text) {
  std::string plain;
  for (char c : lower(text))
    if (!is_punctuation(c)) plain += c;
  Words words = split_words(plain);
  std::erase_if(words, [](const std::string& w) { return w == "a" || w == "an" || w == "the"; });
  return words;
}

}  // namespace

double bleu(std::span<const std::string> hypotheses,
            std::span<const std::vector<std::string>> references) {
  if (hypotheses.size() != references.size())
    throw base::ConfigError(
        fmt::format("BLEU of {} texts against references of {}: give references for each",
                    hypotheses.size(), references.size()));
  std::array<double, kOrder> correct{}, total{};
  double length = 0, reference_length = 0;
  for (size_t i = 0; i < hypotheses.size(); ++i) {
    if (references[i].empty())
      throw base::ConfigError(fmt::format("BLEU: text {} has no reference; give at least one", i));
    const Words words = tokens_13a(hypotheses[i]);
    std::vector<Words> others;
    for (const std::string& reference : references[i]) others.push_back(tokens_13a(reference));
    // Of the reference that is nearest in length; of two, the shorter one.
    auto distance = [&](const Words& other) {
      return std::pair{std::abs(std::ssize(other) - std::ssize(words)), other.size()};
    };
    reference_length += static_cast<double>(std::ranges::min(others, {}, distance).size());
    length += static_cast<double>(words.size());
    for (int n = 1; n <= kOrder; ++n) {
      Counts most;
      for (const Words& other : others)
        for (const auto& [gram, count] : ngrams(other, n)) most[gram] = std::max(most[gram], count);
      correct[n - 1] += static_cast<double>(shared(ngrams(words, n), most));
      total[n - 1] += static_cast<double>(std::max<int64_t>(std::ssize(words) - n + 1, 0));
    }
  }
  double logs = 0, smoothing = 1;
  if (std::ranges::count(correct, 0.0) == kOrder) return 0;
  for (int n = 0; n < kOrder; ++n) {
    if (total[n] == 0) return 0;
    if (correct[n] == 0) smoothing *= 2;
    logs += std::log(correct[n] == 0 ? 100 / (smoothing * total[n]) : 100 * correct[n] / total[n]);
  }
  const double brevity = length < reference_length ? std::exp(1 - reference_length / length) : 1;
  return brevity * std::exp(logs / kOrder);
}

Overlap rouge_n(std::string_view hypothesis, std::string_view reference, int n) {
  const Words a = rouge_words(hypothesis), b = rouge_words(reference);
  auto count = [&](const Words& words) {
    return static_cast<double>(std::max<int64_t>(std::ssize(words) - n + 1, 0));
  };
  return overlap_of(static_cast<double>(shared(ngrams(a, n), ngrams(b, n))), count(a), count(b));
}

Overlap rouge_l(std::string_view hypothesis, std::string_view reference) {
  const Words a = rouge_words(hypothesis), b = rouge_words(reference);
  std::vector<int64_t> longest(b.size() + 1);
  for (const std::string& word : a) {
    int64_t diagonal = 0;
    for (size_t j = 0; j < b.size(); ++j) {
      const int64_t above = longest[j + 1];
      longest[j + 1] = word == b[j] ? diagonal + 1 : std::max(above, longest[j]);
      diagonal = above;
    }
  }
  return overlap_of(static_cast<double>(longest.back()), static_cast<double>(a.size()),
                    static_cast<double>(b.size()));
}

bool exact_match(std::string_view answer, std::string_view reference) {
  return answer_words(answer) == answer_words(reference);
}

Overlap answer_overlap(std::string_view answer, std::string_view reference) {
  const Words a = answer_words(answer), b = answer_words(reference);
  // Where one says nothing, only the same counts.
  if (a.empty() || b.empty()) return a.empty() && b.empty() ? Overlap{1, 1, 1} : Overlap{};
  return overlap_of(static_cast<double>(shared(ngrams(a, 1), ngrams(b, 1))),
                    static_cast<double>(a.size()), static_cast<double>(b.size()));
}

}  // namespace trireme::text
