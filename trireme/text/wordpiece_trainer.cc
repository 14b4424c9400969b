#include "trireme/text/wordpiece_trainer.h"

#include <algorithm>
#include <map>

#include "trireme/base/error.h"
#include "trireme/base/json.h"
#include "trireme/text/merge_learner.h"
#include "trireme/text/piece_counts.h"
#include "trireme/text/pipeline_tokenizer.h"
#include "trireme/text/roles.h"
#include "trireme/text/unicode.h"

namespace trireme::text {
namespace {

constexpr const char *kUnknownToken = "[UNK]", *kPrefix = "##";

// Calls `use(character)` for each character of a word, as its bytes.
template <class Use>
void for_each_character(std::string_view word, const Use& use) {
  for (const char *p = word.data(), *end = p + word.size(); p < end;) {
    const int length = decode_utf8(p, end).length;
    use(std::string_view(p, length));
    p += length;
  }
}

// `first`, then the most frequent characters; of equally frequent ones those with the lowest code.
std::vector<std::string> alphabet(const std::vector<WordCounts::Word>& words,
                                  const std::vector<std::string>& first, int64_t limit) {
  std::map<std::string, int64_t, std::less<>> counts;
  for (const WordCounts::Word& word : words) {
    for_each_character(word.bytes, [&](std::string_view c) {
      auto found = counts.find(c);
      if (found == counts.end()) found = counts.emplace(c, 0).first;
      found->second += word.count;
    });
  }
  std::vector<std::pair<int64_t, std::string>> ranked;
  for (const std::string& c : first) counts[c] = INT64_MAX;
  for (auto& [c, count] : counts) ranked.emplace_back(-count, c);
  std::sort(ranked.begin(), ranked.end());
  if (static_cast<int64_t>(ranked.size()) > limit) ranked.resize(limit);
  std::vector<std::string> kept;
  for (auto& [count, c] : ranked) {
    if (is_utf8(c)) kept.push_back(c);
  }
  std::sort(kept.begin(), kept.end());
  return kept;
}

}  // namespace

std::unique_ptr<Tokenizer> train_wordpiece(const std::vector<std::string>& files,
                                           const WordPieceTrainOptions& options) {
  TokenizerSpec spec;
  spec.normalizer = base::Json{{"type", "BertNormalizer"},
                               {"clean_text", true},
                               {"handle_chinese_chars", true},
                               {"strip_accents", nullptr},
                               {"lowercase", options.lowercase}}
                        .dump();
  spec.pre_tokenizer = R"({"type":"BertPreTokenizer"})";
  spec.decoder = R"({"type":"WordPiece","prefix":"##","cleanup":true})";
  LearnedTokens tokens;
  for (const std::string& token : options.special_tokens) {
    if (token.empty()) throw base::ConfigError("a special token is empty; give its text");
    const auto known = static_cast<int32_t>(tokens.texts.size());
    const int32_t id = tokens.add(token);
    if (id == known) spec.added.push_back({.id = id, .content = token, .special = true});
  }
  if (!tokens.ids.contains(kUnknownToken)) {
    throw base::ConfigError(fmt::format(
        "the special tokens lack {}, which stands for words that the vocabulary cannot write",
        kUnknownToken));
  }
  if (options.limit_alphabet < 1) {
    throw base::ConfigError(
        fmt::format("limit_alphabet {}: expected 1 character or more", options.limit_alphabet));
  }
  check_max_words(options.max_words);
  check_alphabet(options.initial_alphabet);
  WordCounts::Forgotten forgotten;
  WordCounts counts = count_pieces(
      files, spec, options.threads,
      [&](int64_t done, int64_t total) {
        if (options.progress) options.progress("reading", done, total);
      },
      options.max_words, forgotten);
  if (forgotten.words > 0 && options.note) options.note(told(forgotten, options.max_words));
  std::vector<WordCounts::Word> words = counts.sorted();
  for (const std::string& c : alphabet(
           words, options.initial_alphabet,
           std::max(options.limit_alphabet, std::ssize(options.initial_alphabet)))) tokens.add(c);
  std::vector<CountedWord> symbols;
  symbols.reserve(words.size());
  for (const WordCounts::Word& word : words) {
    CountedWord counted{.symbols = {}, .count = word.count};
    for_each_character(word.bytes, [&](std::string_view c) {
      if (!tokens.ids.contains(std::string(c))) return;
      const bool first = c.data() == word.bytes.data();
      counted.symbols.push_back(tokens.add((first ? "" : kPrefix) + std::string(c)));
    });
    symbols.push_back(std::move(counted));
  }
  words = {};
  counts = WordCounts();
  if (options.vocab_size < static_cast<int64_t>(tokens.texts.size())) {
    throw base::ConfigError(fmt::format(
        "vocab_size {} cannot hold the {} special tokens and the alphabet; give at least {}, or "
        "lower limit_alphabet",
        options.vocab_size, spec.added.size(), tokens.texts.size()));
  }
  learn_merges(std::move(symbols), tokens,
               {.vocab_size = options.vocab_size,
                .min_frequency = options.min_frequency,
                .prefix = kPrefix,
                .progress = options.progress});
  WordPieceSpec model;
  model.vocabulary = std::move(tokens.texts);
  spec.model = std::move(model);
  name_roles(spec);
  if (id_of(spec, "[CLS]") && id_of(spec, "[SEP]")) put_bert_template(spec, "[CLS]", "[SEP]");
  return std::make_unique<PipelineTokenizer>(std::move(spec));
}

}  // namespace trireme::text
