#include "trireme/text/piece_counts.h"

#include "trireme/base/error.h"
#include "trireme/base/threads.h"
#include "trireme/text/json_node.h"
#include "trireme/text/normalizer.h"
#include "trireme/text/pre_tokenizer.h"

namespace trireme::text {
namespace {

template <class Stage>
Stage read(const std::string& json) {
  if (json.empty()) return Stage();
  const std::string source = "trainer";
  simdjson::dom::parser parser;
  return Stage(Node(source, "", parse_document(parser, json, source)));
}

void cut_lines(std::string_view text, WordCounts& counts) {
  while (!text.empty()) {
    const size_t length = std::min(text.find('\n'), text.size() - 1) + 1;
    for (const char *p = text.data(), *end = p + length; p < end;) {
      const char* next = plain_word_end(p, end);
      counts.add({p, static_cast<size_t>(next - p)});
      p = next;
    }
    text.remove_prefix(length);
  }
}

}  // namespace

WordCounts count_pieces(const std::vector<std::string>& files, const TokenizerSpec& spec,
                        int threads, const std::function<void(int64_t, int64_t)>& progress,
                        int64_t max_words, WordCounts::Forgotten& forgotten) {
  const auto normalizer = read<Normalizer>(spec.normalizer);
  const auto pre_tokenizer = read<PreTokenizer>(spec.pre_tokenizer);
  base::check(normalizer.local() && pre_tokenizer.local(normalizer.space()),
              "training needs a pipeline that works word by word");
  WordCounts counts;
  Pieces pieces;
  auto count_words_of = [&](const WordCounts& words) {
    for (const WordCounts::Word& word : words.sorted()) {
      pieces.clear();
      NormalizedText text(word.bytes, 0, word.bytes.size());
      normalizer.apply(text);
      if (text.size() == 0) continue;
      const NormalizedText* all = pieces.own(std::move(text));
      pieces.list.push_back({all, 0, all->size(), -1});
      pre_tokenizer.apply(pieces);
      for (const Piece& piece : pieces.list) counts.add(piece.view(), word.count);
    }
    if (counts.exceeds(max_words)) forgotten += counts.keep_most_frequent(max_words / 2);
  };
  const WordLimit limit{.words = max_words, .shrink = [&](WordCounts& words) {
                          count_words_of(words);
                          words = WordCounts();
                        }};
  count_words_of(count_words(files, cut_lines, threads > 0 ? threads : base::available_cores(),
                             progress, limit));
  return counts;
}

}  // namespace trireme::text
