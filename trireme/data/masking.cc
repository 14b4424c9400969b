#include "trireme/data/masking.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <sstream>

#include "trireme/base/error.h"
#include "trireme/base/hash.h"
#include "trireme/base/io.h"

namespace trireme::data {
namespace {

/// By id, whether a token goes on with the word before it: "##" in WordPiece; no mark of a space
/// before in byte-level BPE and SentencePiece's models.
std::vector<bool> continuing_tokens(const text::Tokenizer& tokenizer) {
  std::vector<bool> continues(tokenizer.vocab_size());
  const bool word_piece = tokenizer.type() == "WordPiece";
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string token = tokenizer.token(id);
    continues[id] = word_piece ? token.starts_with("##")
                               : !tokenizer.is_special(id) && !token.starts_with("\u0120") &&
                                     !token.starts_with("\u2581");
  }
  return continues;
}

}  // namespace

Masking::Masking(const MaskingOptions& options, const TextTools& tools)
    : options_(options), vocab_size_(tools.vocab_size()) {
  if (options_.mask_share + options_.random_share > 1)
    throw base::ConfigError(fmt::format("mask_share {} and random_share {} add up to more than 1",
                                        options_.mask_share, options_.random_share));
  if (options_.masked_lm_prob > 0) mask_ = tools.id("mask", options_.mask, {"[MASK]", "<mask>"});
  if (!options_.whole_word && !options_.words.empty())
    throw base::ConfigError("words: a list of words is of use with whole_word: true only");
  if (!options_.whole_word) return;
  if (!tools.tokenizer())
    throw base::ConfigError("whole_word needs `tokenizer`, which knows where words begin");
  continues_ = continuing_tokens(*tools.tokenizer());
  if (!options_.words.empty()) read_words(*tools.tokenizer());
}

void Masking::read_words(const text::Tokenizer& tokenizer) {
  std::istringstream lines(base::read_file(options_.words));
  for (std::string word; std::getline(lines, word);) {
    if (word.ends_with('\r')) word.pop_back();
    const auto ids = tokenizer.encode(word);
    if (ids.size() < 2) continue;
    words_.insert({ids.begin(), ids.end()});
    longest_word_ = std::max(longest_word_, ids.size());
  }
  if (words_.empty()) {
    throw base::ConfigError(fmt::format(
        "words: no line of {} is a word of two or more of the tokenizer's tokens; expected a word on "
        "each line",
        options_.words));
  }
}

/// Whether token i goes on with the word before it.
bool Masking::joins(std::span<const int64_t> ids, size_t i) const {
  return static_cast<size_t>(ids[i]) < continues_.size() && continues_[ids[i]];
}

/// The end of the longest word of the list that begins at `begin` and ends where a word may end;
/// `begin` where there is none.
size_t Masking::listed(std::span<const int64_t> ids, size_t begin, size_t end) const {
  for (size_t n = std::min(longest_word_, end - begin); n > 1; --n) {
    const auto tokens = ids.subspan(begin, n);
    if (begin + n < end && joins(ids, begin + n)) continue;
    if (words_.contains({tokens.begin(), tokens.end()})) return begin + n;
  }
  return begin;
}

std::string identity_of(const MaskingOptions& options) {
  if (options.words.empty()) return "";
  return ", words " + base::hash_to_text(base::hash_text(base::read_file(options.words)));
}

void Masking::apply(std::span<int64_t> ids, const std::vector<bool>& maskable, int64_t* labels,
                    Draws& draws) const {
  std::fill_n(labels, ids.size(), kIgnoreLabel);
  // Words as ranges [starts[w], ends[w]).
  std::vector<size_t> starts, ends;
  int64_t tokens = 0;
  for (size_t i = 0, run_end = 0; i < ids.size(); ++i) {
    if (!maskable[i]) continue;
    ++tokens;
    const bool inside = !ends.empty() && i < ends.back();  // a word of the list
    if (inside) continue;
    if (options_.whole_word && !ends.empty() && ends.back() == i && joins(ids, i)) {
      ++ends.back();
      continue;
    }
    for (run_end = std::max(run_end, i); run_end < ids.size() && maskable[run_end];) ++run_end;
    starts.push_back(i);
    ends.push_back(words_.empty() ? i + 1 : std::max(i + 1, listed(ids, i, run_end)));
  }
  if (options_.masked_lm_prob == 0 || tokens == 0) return;
  auto budget = std::max<int64_t>(
      1,
      static_cast<int64_t>(std::nearbyint(options_.masked_lm_prob * static_cast<double>(tokens))));
  if (options_.max_predictions > 0) budget = std::min(budget, options_.max_predictions);

  double total = 0;
  for (int64_t n = 1; n <= options_.max_ngram; ++n) total += 1.0 / static_cast<double>(n);
  std::vector<size_t> order(starts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  draws.shuffle(std::span(order));
  std::vector<bool> hidden(starts.size(), false);
  for (size_t first : order) {
    if (budget == 0) break;
    int64_t n = 1;
    if (options_.max_ngram > 1) {
      double at = draws.uniform() * total;
      while (n < options_.max_ngram && (at -= 1.0 / static_cast<double>(n)) >= 0) ++n;
    }
    // The longest run of up to n words that the budget covers.
    int64_t cost = 0;
    size_t last = first;
    for (; last < std::min(starts.size(), first + static_cast<size_t>(n)) && !hidden[last];
         ++last) {
      const auto size = static_cast<int64_t>(ends[last] - starts[last]);
      if (cost + size > budget) break;
      cost += size;
    }
    budget -= cost;
    for (size_t w = first; w < last; ++w) {
      hidden[w] = true;
      for (size_t i = starts[w]; i < ends[w]; ++i) {
        labels[i] = ids[i];
        const double kind = draws.uniform();
        if (kind < options_.mask_share) {
          ids[i] = mask_;
        } else if (kind < options_.mask_share + options_.random_share) {
          ids[i] = draws.below(vocab_size_);
        }
      }
    }
  }
}

}  // namespace trireme::data
