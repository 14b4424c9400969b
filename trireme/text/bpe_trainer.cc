#include "trireme/text/bpe_trainer.h"

#include "trireme/base/error.h"
#include "trireme/base/threads.h"
#include "trireme/text/byte_alphabet.h"
#include "trireme/text/merge_learner.h"
#include "trireme/text/pipeline_tokenizer.h"
#include "trireme/text/roles.h"
#include "trireme/text/unicode.h"
#include "trireme/text/word_counts.h"

namespace trireme::text {
namespace {

std::string byte_level_stage(bool add_prefix_space, bool trim_offsets) {
  return fmt::format(
      R"({{"type":"ByteLevel","add_prefix_space":{},"trim_offsets":{},"use_regex":true}})",
      add_prefix_space, trim_offsets);
}

}  // namespace

std::unique_ptr<Tokenizer> train_bpe(const std::vector<std::string>& files,
                                     const BpeTrainOptions& options) {
  if (options.max_token_length < 0) {
    throw base::ConfigError(fmt::format("max_token_length {}: expected 0 (no limit) or more bytes",
                                        options.max_token_length));
  }
  check_max_words(options.max_words);
  LearnedTokens vocabulary;
  TokenizerSpec spec;
  for (const std::string& token : options.special_tokens) {
    if (token.empty()) throw base::ConfigError("a special token is empty; give its text");
    if (auto byte = from_alphabet(token); byte && byte->size() == 1 && *byte != token) {
      throw base::ConfigError(fmt::format(
          "special token \"{}\" is how the vocabulary writes byte 0x{:02x}; choose another text",
          token, static_cast<uint8_t>((*byte)[0])));
    }
    const auto known = static_cast<int32_t>(vocabulary.texts.size());
    const int32_t id = vocabulary.add(token);
    if (id == known) spec.added.push_back({.id = id, .content = token, .special = true});
  }
  if (!spec.added.empty()) spec.end_of_document = spec.added[0].id;
  std::array<int32_t, 256> byte_ids;
  for (char32_t c = 0; c < 512; ++c) {
    std::string text;
    append_utf8(text, c);
    if (auto byte = from_alphabet(text)) {
      byte_ids[static_cast<uint8_t>((*byte)[0])] = vocabulary.add(text);
    }
  }
  if (options.vocab_size < static_cast<int64_t>(vocabulary.texts.size())) {
    throw base::ConfigError(fmt::format(
        "vocab_size {} cannot hold the {} special tokens and the 256 bytes; give at least {}",
        options.vocab_size, spec.added.size(), vocabulary.texts.size()));
  }
  const int threads = options.threads > 0 ? options.threads : base::available_cores();
  std::vector<CountedWord> words;
  WordCounts::Forgotten forgotten;
  {
    const WordLimit limit{.words = options.max_words, .shrink = [&](WordCounts& counted) {
                            forgotten += counted.keep_most_frequent(options.max_words / 2);
                          }};
    const WordCounts counts = count_words(
        files,
        [&](std::string_view lines, WordCounts& words_of_lines) {
          words_of_lines.add_lines(lines, options.add_prefix_space);
        },
        threads,
        [&](int64_t done, int64_t total) {
          if (options.progress) options.progress("reading", done, total);
        },
        limit);
    words.reserve(static_cast<size_t>(counts.size()));
    for (const WordCounts::Word& word : counts.sorted()) {
      std::vector<int32_t> symbols;
      symbols.reserve(word.bytes.size());
      for (char byte : word.bytes) symbols.push_back(byte_ids[static_cast<uint8_t>(byte)]);
      words.push_back({std::move(symbols), word.count});
    }
  }
  if (forgotten.words > 0 && options.note) options.note(told(forgotten, options.max_words));
  BpeSpec model;
  model.merges = learn_merges(std::move(words), vocabulary,
                              {.vocab_size = options.vocab_size,
                               .min_frequency = options.min_frequency,
                               .max_token_length = options.max_token_length,
                               .prefix = {},
                               .progress = options.progress});
  model.vocabulary = std::move(vocabulary.texts);
  spec.model = std::move(model);
  spec.pre_tokenizer = byte_level_stage(options.add_prefix_space, true);
  spec.post_processor = byte_level_stage(true, false);
  spec.decoder = byte_level_stage(true, true);
  name_roles(spec);
  return std::make_unique<PipelineTokenizer>(std::move(spec));
}

}  // namespace trireme::text
