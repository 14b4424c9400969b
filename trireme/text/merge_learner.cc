#include "trireme/text/merge_learner.h"

#include <algorithm>
#include <queue>

namespace trireme::text {
namespace {

// The words as ids, and for every pair of neighbours how often it occurs and in which words.
class PairIndex {
 public:
  using Pair = uint64_t;               // left id << 32 | right id; sorts as (left, right)
  using Words = std::vector<int32_t>;  // ascending, distinct
  static Pair pair(int32_t left, int32_t right) {
    return static_cast<Pair>(left) << 32 | static_cast<uint32_t>(right);
  }

  explicit PairIndex(int64_t max_token_length)
      : max_token_length_(max_token_length), slots_(1 << 16) {}
  void add_word(const std::vector<int32_t>& symbols, int64_t count) {
    const auto word = static_cast<int32_t>(counts_.size());
    begins_.push_back(symbols_.size());
    lengths_.push_back(static_cast<int32_t>(symbols.size()));
    symbols_.insert(symbols_.end(), symbols.begin(), symbols.end());
    counts_.push_back(count);
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      appears(pair(symbols[i], symbols[i + 1]), word, count);
    }
  }

  int64_t count(Pair pair) { return slot(pair).count; }

  // Replaces left, right by `result` in `words`.
  void merge(int32_t left, int32_t right, int32_t result, const Words& words) {
    token_lengths_.resize(std::max(token_lengths_.size(), static_cast<size_t>(result) + 1), 1);
    token_lengths_[result] = length(left) + length(right);
    for (int32_t word : words) merge_word(left, right, result, word);
  }

  // Hands the pairs that appeared since the last call to `use(pair, words where)`.
  template <class Use>
  void take_new(const Use& use) {
    for (Pair pair : new_pairs_) {
      Slot& entry = slot(pair);
      use(pair, std::move(new_words_[entry.fresh]));
      entry.fresh = -1;
    }
    new_pairs_.clear();
    new_words_.clear();
  }

 private:
  struct Slot {
    Pair pair = UINT64_MAX;
    int64_t count = 0;
    int32_t fresh = -1;  // its place in new_words_
  };

  Slot& slot(Pair pair) {
    size_t at = find(pair);
    if (slots_[at].pair == pair) return slots_[at];
    if (++used_ * 2 > slots_.size()) {
      std::vector<Slot> old(slots_.size() * 2);
      old.swap(slots_);
      for (const Slot& entry : old) {
        if (entry.pair != UINT64_MAX) slots_[find(entry.pair)] = entry;
      }
      at = find(pair);
    }
    slots_[at].pair = pair;
    return slots_[at];
  }
  size_t find(Pair pair) const {
    const uint64_t hash = pair * 0x9E3779B97F4A7C15u;
    size_t at = (hash ^ hash >> 32) & (slots_.size() - 1);
    while (slots_[at].pair != pair && slots_[at].pair != UINT64_MAX) {
      at = (at + 1) & (slots_.size() - 1);
    }
    return at;
  }

  void appears(Pair pair, int32_t word, int64_t count) {
    Slot& entry = slot(pair);
    entry.count += count;
    if (entry.fresh < 0) {
      entry.fresh = static_cast<int32_t>(new_words_.size());
      new_words_.emplace_back();
      new_pairs_.push_back(pair);
    }
    Words& words = new_words_[entry.fresh];
    if (words.empty() || words.back() != word) words.push_back(word);
  }

  int64_t length(int32_t token) const {
    return static_cast<size_t>(token) < token_lengths_.size() ? token_lengths_[token] : 1;
  }
  bool fits(int32_t left, int32_t right) const {
    return max_token_length_ == 0 || length(left) + length(right) < max_token_length_;
  }

  // The merged pair's own count stays: the trainer that this one equals leaves it too.
  void merge_word(int32_t left, int32_t right, int32_t result, int32_t word) {
    int32_t* symbols = symbols_.data() + begins_[word];
    const int32_t length = lengths_[word];
    const int64_t count = counts_[word];
    int32_t kept = 0;
    for (int32_t i = 0; i < length;) {
      if (symbols[i] != left || i + 1 == length || symbols[i + 1] != right) {
        symbols[kept++] = symbols[i++];
        continue;
      }
      if (kept > 0) {
        slot(pair(symbols[kept - 1], left)).count -= count;
        if (fits(symbols[kept - 1], result)) appears(pair(symbols[kept - 1], result), word, count);
      }
      i += 2;
      if (i < length) {
        slot(pair(right, symbols[i])).count -= count;
        if (fits(result, symbols[i])) appears(pair(result, symbols[i]), word, count);
      }
      symbols[kept++] = result;
    }
    lengths_[word] = kept;
  }

  int64_t max_token_length_;
  std::vector<int64_t> token_lengths_;  // by id; 1 beyond its end
  std::vector<int32_t> symbols_;
  std::vector<size_t> begins_;    // by word
  std::vector<int32_t> lengths_;  // by word
  std::vector<int64_t> counts_;   // by word
  std::vector<Slot> slots_;       // open addressing, at most half full
  size_t used_ = 0;
  std::vector<Pair> new_pairs_;
  std::vector<Words> new_words_;
};

// A pair and words in which it may occur. The count may be out of date; it is checked when the
// candidate comes first.
struct Candidate {
  int64_t count;
  PairIndex::Pair pair;
  size_t words;
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

std::vector<MergeRule> all_merges(PairIndex& pairs, LearnedTokens& vocabulary,
                                  const MergeOptions& options) {
  std::vector<MergeRule> merges;
  std::vector<PairIndex::Words> words;
  std::priority_queue<Candidate> queue;
  auto enqueue_new = [&] {
    pairs.take_new([&](PairIndex::Pair pair, PairIndex::Words where) {
      if (pairs.count(pair) <= 0) return;
      queue.push({pairs.count(pair), pair, words.size()});
      words.push_back(std::move(where));
    });
  };
  enqueue_new();
  const auto wanted = static_cast<size_t>(options.vocab_size);
  while (vocabulary.texts.size() < wanted && !queue.empty()) {
    Candidate top = queue.top();
    queue.pop();
    if (const int64_t count = pairs.count(top.pair); count != top.count) {
      top.count = count;
      if (count > 0) queue.push(top);
      continue;
    }
    if (top.count < options.min_frequency) break;
    const auto left = static_cast<int32_t>(top.pair >> 32);
    const auto right = static_cast<int32_t>(top.pair & UINT32_MAX);
    const int32_t result = vocabulary.add(
        vocabulary.texts[left] +
        (vocabulary.texts[right].starts_with(options.prefix)
             ? vocabulary.texts[right].substr(options.prefix.size())
             : vocabulary.texts[right]));
    merges.push_back({left, right, result});
    pairs.merge(left, right, result, words[top.words]);
    words[top.words] = {};
    enqueue_new();
    if (options.progress && merges.size() % 64 == 0) {
      options.progress("merging", static_cast<int64_t>(vocabulary.texts.size()),
                       options.vocab_size);
    }
  }
  return merges;
}

// A pair can be merged twice (two cuts of one text make the same token); its last rank counts.
std::vector<MergeRule> last_of_each_pair(const std::vector<MergeRule>& merges) {
  std::unordered_map<PairIndex::Pair, size_t> last;
  for (size_t i = 0; i < merges.size(); ++i)
    last[PairIndex::pair(merges[i].left, merges[i].right)] = i;
  std::vector<MergeRule> kept;
  for (size_t i = 0; i < merges.size(); ++i) {
    if (last[PairIndex::pair(merges[i].left, merges[i].right)] == i) kept.push_back(merges[i]);
  }
  return kept;
}

}  // namespace

std::vector<MergeRule> learn_merges(std::vector<CountedWord> words, LearnedTokens& tokens,
                                    const MergeOptions& options) {
  PairIndex pairs(options.max_token_length);
  for (const CountedWord& word : words) pairs.add_word(word.symbols, word.count);
  words = {};
  return last_of_each_pair(all_merges(pairs, tokens, options));
}

}  // namespace trireme::text
