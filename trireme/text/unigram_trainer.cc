#include "trireme/text/unigram_trainer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <unordered_set>

#include "trireme/base/error.h"
#include "trireme/base/threads.h"
#include "trireme/text/piece_counts.h"
#include "trireme/text/pipeline_tokenizer.h"
#include "trireme/text/prefix_trie.h"
#include "trireme/text/roles.h"
#include "trireme/text/seed_pieces.h"
#include "trireme/text/unicode.h"

namespace trireme::text {
namespace {

constexpr int kBlocks = 8;              // sums are formed in this order, whatever the threads
constexpr int kIterations = 2;          // of expectation maximization in a round
constexpr double kFewest = 0.5;         // pieces expected less often are dropped
constexpr double kSurplus = 1.1;        // pieces that the last round leaves, over those wanted
constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

using CountedWords = std::vector<WordCounts::Word>;

double log_add(double a, double b) {
  if (a < b) std::swap(a, b);
  return b == kMinusInfinity ? a : a + std::log1p(std::exp(b - a));
}

// The derivative of the logarithm of the gamma function.
double digamma(double x) {
  double result = 0;
  for (; x < 7; ++x) result -= 1 / x;
  x -= 0.5;
  const double xx = 1 / x, xx2 = xx * xx, xx4 = xx2 * xx2;
  return result + std::log(x) + xx2 / 24 - 7.0 / 960 * xx4 + 31.0 / 8064 * xx4 * xx2 -
         127.0 / 30720 * xx4 * xx4;
}

// Pieces with their scores, and the ways through a word.
class Lattice {
 public:
  explicit Lattice(const std::vector<SeedPiece>& pieces)
      : pieces_(pieces), trie_(std::make_shared<PrefixTrie>(keys(pieces))) {}

  /// Adds the expected number of times that each piece occurs in `count` times the word; returns
  /// the word's log-likelihood, times `count`.
  double expect(std::string_view word, double count, std::vector<double>& expected) {
    const size_t n = word.size();
    forward_.assign(n + 1, kMinusInfinity);
    backward_.assign(n + 1, kMinusInfinity);
    edges_.clear();
    forward_[0] = 0;
    for (size_t at = 0; at < n; ++at) {
      if (forward_[at] == kMinusInfinity) continue;
      trie_->for_each_prefix(word.substr(at), [&](size_t length, int32_t id) {
        edges_.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(at + length), id});
        forward_[at + length] =
            log_add(forward_[at + length], forward_[at] + pieces_[id].score);
      });
    }
    if (forward_[n] == kMinusInfinity) return 0;  // holds a character that no piece has
    backward_[n] = 0;
    for (size_t i = edges_.size(); i-- > 0;) {
      const Edge& e = edges_[i];
      if (backward_[e.end] == kMinusInfinity) continue;
      backward_[e.begin] = log_add(backward_[e.begin], backward_[e.end] + pieces_[e.id].score);
    }
    for (const Edge& e : edges_) {
      if (backward_[e.end] == kMinusInfinity) continue;
      expected[e.id] += count * std::exp(forward_[e.begin] + pieces_[e.id].score +
                                         backward_[e.end] - forward_[n]);
    }
    return count * forward_[n];
  }

  /// The likeliest pieces of a word, without `but`; empty where there is no way.
  const std::vector<int32_t>& best(std::string_view word, int32_t but = -1) {
    const size_t n = word.size();
    forward_.assign(n + 1, kMinusInfinity);
    from_.assign(n + 1, {0, -1});
    forward_[0] = 0;
    for (size_t at = 0; at < n; ++at) {
      if (forward_[at] == kMinusInfinity) continue;
      trie_->for_each_prefix(word.substr(at), [&](size_t length, int32_t id) {
        const double score = forward_[at] + pieces_[id].score;
        if (id != but && score > forward_[at + length]) {
          forward_[at + length] = score;
          from_[at + length] = {static_cast<uint32_t>(at), id};
        }
      });
    }
    path_.clear();
    if (forward_[n] == kMinusInfinity) return path_;
    for (size_t at = n; at > 0; at = from_[at].first) path_.push_back(from_[at].second);
    std::reverse(path_.begin(), path_.end());
    return path_;
  }

 private:
  struct Edge {
    uint32_t begin, end;
    int32_t id;
  };
  static std::vector<std::pair<std::string_view, int32_t>> keys(
      const std::vector<SeedPiece>& pieces) {
    std::vector<std::pair<std::string_view, int32_t>> keys;
    for (size_t i = 0; i < pieces.size(); ++i) {
      keys.emplace_back(pieces[i].text, static_cast<int32_t>(i));
    }
    return keys;
  }

  const std::vector<SeedPiece>& pieces_;
  std::shared_ptr<const PrefixTrie> trie_;  // copies share it
  std::vector<double> forward_, backward_;
  std::vector<Edge> edges_;
  std::vector<std::pair<uint32_t, int32_t>> from_;
  std::vector<int32_t> path_;
};

// Sums `body(lattice, words, sums)` over all words in kBlocks parts, one after the other in order.
template <class Body>
std::vector<double> sum_over_words(const std::vector<SeedPiece>& pieces, const CountedWords& words,
                                   int threads, const Body& body) {
  const Lattice lattice(pieces);
  std::vector<std::vector<double>> sums(kBlocks);
  base::parallel_for(kBlocks, threads, [&](int64_t block) {
    Lattice own = lattice;
    sums[block].assign(pieces.size(), 0.0);
    const size_t begin = words.size() * block / kBlocks, end = words.size() * (block + 1) / kBlocks;
    for (size_t i = begin; i < end; ++i) body(own, words[i], sums[block]);
  });
  for (int block = 1; block < kBlocks; ++block) {
    for (size_t i = 0; i < pieces.size(); ++i) sums[0][i] += sums[block][i];
    sums[block] = {};
  }
  return std::move(sums[0]);
}

std::vector<SeedPiece> fit(const std::vector<SeedPiece>& pieces, const CountedWords& words,
                           int threads) {
  const std::vector<double> expected = sum_over_words(
      pieces, words, threads, [](Lattice& lattice, const WordCounts::Word& word, auto& sums) {
        lattice.expect(word.bytes, static_cast<double>(word.count), sums);
      });
  std::vector<SeedPiece> kept;
  double sum = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (expected[i] < kFewest) continue;
    kept.push_back({pieces[i].text, expected[i]});
    sum += expected[i];
  }
  for (SeedPiece& piece : kept) piece.score = digamma(piece.score) - digamma(sum);
  return kept;
}

// Drops the pieces whose absence costs least likelihood; characters stay.
std::vector<SeedPiece> prune(const std::vector<SeedPiece>& pieces, const CountedWords& words,
                             size_t size, int threads) {
  const std::vector<double> counts = sum_over_words(
      pieces, words, threads, [](Lattice& lattice, const WordCounts::Word& word, auto& sums) {
        for (int32_t id : lattice.best(word.bytes)) sums[id] += static_cast<double>(word.count);
      });
  double sum = 0;
  for (double count : counts) sum += count;
  const double log_sum = std::log(sum);
  Lattice lattice(pieces);
  std::vector<SeedPiece> kept;
  std::vector<std::pair<double, size_t>> candidates;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::vector<int32_t>& best = lattice.best(pieces[i].text);
    const bool itself = best.size() == 1 && best[0] == id;
    const std::vector<int32_t> others = lattice.best(pieces[i].text, id);
    if (others.empty()) {  // nothing else can write it
      kept.push_back(pieces[i]);
      continue;
    }
    if (counts[i] == 0 || !itself) continue;
    const double log_sum_without =
        std::log(sum + counts[i] * (static_cast<double>(others.size()) - 1));
    double likelihood_without = 0;
    for (int32_t other : others) {
      likelihood_without += std::log(counts[other] + counts[i]) - log_sum_without;
    }
    const double loss = counts[i] * (std::log(counts[i]) - log_sum - likelihood_without);
    candidates.emplace_back(-loss, i);
  }
  std::sort(candidates.begin(), candidates.end());
  for (const auto& [loss, i] : candidates) {
    if (kept.size() >= size) break;
    kept.push_back(pieces[i]);
  }
  std::sort(kept.begin(), kept.end(),
            [](const SeedPiece& a, const SeedPiece& b) { return a.text < b.text; });
  return kept;
}

// The pieces that are one character: enough of the most frequent ones, and `first`.
std::vector<SeedPiece> characters(const CountedWords& words, double coverage,
                                  const std::vector<std::string>& first) {
  std::map<std::string, int64_t, std::less<>> counts;
  int64_t total = 0;
  for (const WordCounts::Word& word : words) {
    for (const char *p = word.bytes.data(), *end = p + word.bytes.size(); p < end;) {
      const int length = decode_utf8(p, end).length;
      const std::string_view c(p, length);
      auto found = counts.find(c);
      if (found == counts.end()) found = counts.emplace(c, 0).first;
      found->second += word.count;
      total += word.count;
      p += length;
    }
  }
  std::vector<std::pair<int64_t, std::string>> ranked;
  for (auto& [c, count] : counts) ranked.emplace_back(-count, c);
  std::sort(ranked.begin(), ranked.end());
  std::vector<SeedPiece> kept;
  int64_t covered = 0;
  for (auto& [count, c] : ranked) {
    const bool enough = static_cast<double>(covered) >= coverage * static_cast<double>(total);
    if (enough && std::ranges::find(first, c) == first.end()) continue;
    if (!enough) covered -= count;
    if (is_utf8(c)) kept.push_back({c, static_cast<double>(-count)});
  }
  for (const std::string& c : first) {  // that the text lacks
    if (std::ranges::find(kept, c, &SeedPiece::text) == kept.end()) kept.push_back({c, 1});
  }
  return kept;
}

// CountedWords cut at the characters that no piece has.
WordCounts writable(const CountedWords& words, const std::vector<SeedPiece>& characters) {
  std::unordered_set<std::string_view> known;
  for (const SeedPiece& c : characters) known.insert(c.text);
  WordCounts counts;
  for (const WordCounts::Word& word : words) {
    const char *begin = word.bytes.data(), *end = begin + word.bytes.size(), *start = begin;
    for (const char* p = begin; p < end;) {
      const int length = decode_utf8(p, end).length;
      if (!known.contains(std::string_view(p, length))) {
        if (p > start) counts.add({start, static_cast<size_t>(p - start)}, word.count);
        start = p + length;
      }
      p += length;
    }
    if (end > start) counts.add({start, static_cast<size_t>(end - start)}, word.count);
  }
  return counts;
}

}  // namespace

std::unique_ptr<Tokenizer> train_unigram(const std::vector<std::string>& files,
                                         const UnigramTrainOptions& options) {
  TokenizerSpec spec;
  spec.normalizer = R"({"type":"Sequence","normalizers":[{"type":"Nmt"},{"type":"NFKC"}]})";
  spec.pre_tokenizer =
      R"({"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},{"type":"Metaspace",)"
      "\"replacement\":\"\u2581\",\"prepend_scheme\":\"always\",\"split\":true}]}";
  spec.decoder =
      "{\"type\":\"Metaspace\",\"replacement\":\"\u2581\",\"prepend_scheme\":\"always\","
      "\"split\":true}";
  if (options.special_tokens.empty()) {
    throw base::ConfigError("unigram needs a special token for unknown text; give <unk>");
  }
  if (!(options.character_coverage > 0 && options.character_coverage <= 1)) {
    throw base::ConfigError(fmt::format("character_coverage {}: expected more than 0 and at most 1",
                                        options.character_coverage));
  }
  if (options.max_piece_length < 1) {
    throw base::ConfigError(
        fmt::format("max_piece_length {}: expected 1 character or more", options.max_piece_length));
  }
  UnigramSpec model;
  for (const std::string& token : options.special_tokens) {
    if (token.empty()) throw base::ConfigError("a special token is empty; give its text");
    if (std::find(model.vocabulary.begin(), model.vocabulary.end(), token) !=
        model.vocabulary.end()) {
      continue;
    }
    spec.added.push_back({.id = static_cast<int32_t>(model.vocabulary.size()),
                          .content = token,
                          .special = true});
    model.vocabulary.push_back(token);
    model.scores.push_back(0);
  }
  model.unk = 0;
  spec.end_of_document = spec.added.back().id;
  const int threads = options.threads > 0 ? options.threads : base::available_cores();
  check_max_words(options.max_words);
  check_alphabet(options.initial_alphabet);
  WordCounts::Forgotten forgotten;
  WordCounts pieces_counted = count_pieces(
      files, spec, threads,
      [&](int64_t done, int64_t total) {
        if (options.progress) options.progress("reading", done, total);
      },
      options.max_words, forgotten);
  if (forgotten.words > 0 && options.note) options.note(told(forgotten, options.max_words));
  const std::vector<SeedPiece> alphabet =
      characters(pieces_counted.sorted(), options.character_coverage, options.initial_alphabet);
  const auto least = static_cast<int64_t>(model.vocabulary.size() + alphabet.size());
  if (options.vocab_size < least) {
    throw base::ConfigError(fmt::format(
        "vocab_size {} cannot hold the {} special tokens and {} characters; give at least {}, or "
        "lower character_coverage",
        options.vocab_size, model.vocabulary.size(), alphabet.size(), least));
  }
  const WordCounts counts = writable(pieces_counted.sorted(), alphabet);
  pieces_counted = WordCounts();
  const CountedWords words = counts.sorted();
  std::vector<SeedPiece> pieces =
      seed_pieces(words, alphabet, options.max_piece_length, options.seed_size);
  const auto wanted = static_cast<size_t>(options.vocab_size) - model.vocabulary.size();
  const auto enough = static_cast<size_t>(static_cast<double>(wanted) * kSurplus);
  while (!words.empty()) {
    for (int i = 0; i < kIterations; ++i) pieces = fit(pieces, words, threads);
    if (options.progress) {
      options.progress("pruning", static_cast<int64_t>(enough),
                       static_cast<int64_t>(std::max(pieces.size(), enough)));
    }
    if (pieces.size() <= enough) break;
    const auto shrunk =
        static_cast<size_t>(static_cast<double>(pieces.size()) * options.shrinking_factor);
    const size_t before = pieces.size();
    pieces = prune(pieces, words, std::max(enough, shrunk), threads);
    if (pieces.size() == before) break;  // none of them can be written otherwise
  }
  // All characters, then the likeliest pieces.
  std::map<std::string_view, double> scores;
  double lowest = 0;
  for (const SeedPiece& piece : pieces) {
    scores.emplace(piece.text, piece.score);
    lowest = std::min(lowest, piece.score);
  }
  std::vector<SeedPiece> final;
  std::unordered_set<std::string_view> taken;
  for (const SeedPiece& c : alphabet) {
    const auto found = scores.find(c.text);
    lowest -= found == scores.end() ? 1e-4 : 0;
    final.push_back({c.text, found == scores.end() ? lowest : found->second});
    taken.insert(c.text);
  }
  std::vector<SeedPiece> ranked = pieces;
  std::sort(ranked.begin(), ranked.end(), [](const SeedPiece& a, const SeedPiece& b) {
    return a.score != b.score ? a.score > b.score : a.text < b.text;
  });
  for (const SeedPiece& piece : ranked) {
    if (final.size() >= wanted) break;
    if (!taken.contains(piece.text)) final.push_back(piece);
  }
  std::sort(final.begin(), final.end(), [](const SeedPiece& a, const SeedPiece& b) {
    return a.score != b.score ? a.score > b.score : a.text < b.text;
  });
  for (SeedPiece& piece : final) {
    if (std::find(options.special_tokens.begin(), options.special_tokens.end(), piece.text) !=
        options.special_tokens.end()) {
      continue;
    }
    model.vocabulary.push_back(std::move(piece.text));
    model.scores.push_back(piece.score);
  }
  spec.settings["unk_token"] = model.vocabulary[0];
  spec.model = std::move(model);
  name_roles(spec);
  return std::make_unique<PipelineTokenizer>(std::move(spec));
}

}  // namespace trireme::text
