#include "trireme/text/pipeline_tokenizer.h"

#include <algorithm>
#include <array>

#include "trireme/base/error.h"
#include "trireme/base/philox.h"
#include "trireme/base/threads.h"
#include "trireme/text/byte_alphabet.h"
#include "trireme/text/json_node.h"
#include "trireme/text/unicode.h"

namespace trireme::text {
namespace {

// Ids of the tokens that are one byte.
std::array<int32_t, 256> byte_ids(const std::vector<std::string>& vocabulary) {
  std::array<int32_t, 256> ids;
  ids.fill(-1);
  for (size_t id = 0; id < vocabulary.size(); ++id) {
    if (vocabulary[id].empty() || vocabulary[id].size() > 2) continue;
    auto bytes = from_alphabet(vocabulary[id]);
    if (bytes && bytes->size() == 1)
      ids[static_cast<uint8_t>((*bytes)[0])] = static_cast<int32_t>(id);
  }
  return ids;
}

// Characters before each byte offset of a text.
class CharacterIndex {
 public:
  explicit CharacterIndex(std::string_view text) {
    if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 128; }))
      return;
    index_.reserve(text.size() + 1);
    uint32_t count = 0;
    for (const char *p = text.data(), *end = p + text.size(); p < end; ++count) {
      const int length = decode_utf8(p, end).length;
      index_.insert(index_.end(), length, count);
      p += length;
    }
    index_.push_back(count);
  }
  int64_t at(uint32_t byte) const { return index_.empty() ? byte : index_[byte]; }

 private:
  std::vector<uint32_t> index_;  // empty where characters are bytes
};

// Where the word at `p` ends and the next one begins: around ASCII whitespace that has printable
// ASCII characters on both sides.
std::pair<const char*, const char*> spaced_word(const char* p, const char* end) {
  auto is_blank = [](char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; };
  auto is_printable = [](char c) { return c > ' ' && c < 0x7F; };
  for (const char* q = p + 1; q < end; ++q) {
    if (!is_blank(*q) || !is_printable(q[-1])) continue;
    const char* next = q;
    while (next < end && is_blank(*next)) ++next;
    if (next == end || is_printable(*next)) return {q, next};
    q = next;
  }
  return {end, end};
}

template <class Stage>
Stage read_stage(const TokenizerSpec& spec, const char* name, const std::string& json,
                 const auto& make) {
  if (json.empty()) return Stage();
  simdjson::dom::parser parser;
  return make(Node(spec.source, name, parse_document(parser, json, spec.source)));
}

}  // namespace

PipelineTokenizer::PipelineTokenizer(TokenizerSpec spec)
    : spec_(std::move(spec)), model_(make_model(spec_.model)) {
  read_texts();
  read_stages();
  add_tokens();
  find_shortcuts();
}

void PipelineTokenizer::read_texts() {
  texts_ = model_vocabulary(spec_.model);
  special_.resize(texts_.size());
  for (const AddedToken& token : spec_.added) {
    const size_t size = std::max(texts_.size(), static_cast<size_t>(token.id) + 1);
    texts_.resize(size);
    special_.resize(size);
    texts_[token.id] = token.content;
    special_[token.id] = token.special;
  }
  ids_.reserve(texts_.size());
  for (size_t id = 0; id < texts_.size(); ++id) {
    if (!texts_[id].empty()) ids_.emplace(texts_[id], static_cast<int32_t>(id));
  }
}

void PipelineTokenizer::read_stages() {
  auto read = [&]<class Stage>(Stage& stage, const char* name, const std::string& json) {
    stage = read_stage<Stage>(spec_, name, json, [](const Node& node) { return Stage(node); });
  };
  read(normalizer_, "normalizer", spec_.normalizer);
  read(pre_tokenizer_, "pre_tokenizer", spec_.pre_tokenizer);
  read(decoder_, "decoder", spec_.decoder);
  post_processor_ = read_stage<PostProcessor>(
      spec_, "post_processor", spec_.post_processor,
      [&](const Node& node) { return PostProcessor(node, vocab_size()); });
  truncation_ = read_stage<std::optional<Truncation>>(
      spec_, "truncation", spec_.truncation,
      [](const Node& node) { return Truncation::read(node); });
  padding_ = read_stage<std::optional<Padding>>(
      spec_, "padding", spec_.padding, [](const Node& node) { return Padding::read(node); });
  before_ = post_processor_.before();
  after_ = post_processor_.after();
}

void PipelineTokenizer::add_tokens() {
  std::vector<AddedToken> raw, normalized;
  for (AddedToken token : spec_.added) {
    if (token.rstrip || token.content.find_first_of(" \n") != std::string::npos)
      cuts_before_space_ = false;
    if (token.lstrip) cuts_behind_line_ = false;  // takes the line's end along
    if (!token.normalized) {
      raw.push_back(token);
      continue;
    }
    if (!normalizer_.empty()) {
      NormalizedText content(token.content, 0, token.content.size());
      normalizer_.apply(content);
      token.content = content.view();
      if (texts_[token.id] != token.content) normal_forms_[token.id] = token.content;
    }
    normalized.push_back(token);
  }
  if (!raw.empty()) raw_.emplace(std::move(raw));
  if (!normalized.empty()) normalized_.emplace(std::move(normalized));
}

void PipelineTokenizer::find_shortcuts() {
  const auto* bpe = std::get_if<BpeSpec>(&spec_.model);
  if (bpe) make_byte_level(*bpe);
  if (normalized_ || !normalizer_.local()) return;
  const std::string space = normalizer_.space();
  if (normalizer_.keeps_whitespace() && pre_tokenizer_.drops_spaces(space)) {
    words_ = Words::between_spaces;
  } else if (pre_tokenizer_.local(space) ||
             (pre_tokenizer_.splits_nothing(space) && model_->local(space))) {
    words_ = Words::before_spaces;
  }
  marks_beginning_ = normalizer_.marks_beginning() || pre_tokenizer_.marks_beginning();
}

void PipelineTokenizer::make_byte_level(const BpeSpec& bpe) {
  using P = PreTokenizer;
  const auto& steps = pre_tokenizer_.steps();
  if (!normalizer_.empty() || steps.empty() || steps.size() > 2) return;
  const auto* last = std::get_if<P::ByteLevel>(&steps.back());
  if (!last || !bpe.continuing_prefix.empty() || !bpe.word_suffix.empty()) return;
  std::optional<WordPattern> pattern;
  if (last->use_regex) pattern = WordPattern::gpt2;
  if (steps.size() == 2) {
    const auto* split = std::get_if<P::Split>(&steps.front());
    const bool all = split && split->known &&
                     (split->behavior == SplitBehavior::isolated ||
                      (split->behavior == SplitBehavior::removed && split->invert));
    if (!all || last->use_regex || last->add_prefix_space) return;
    pattern = split->known;
  }
  const std::array<int32_t, 256> ids = byte_ids(bpe.vocabulary);
  // A byte that the vocabulary lacks is a matter for the model.
  const bool whole = std::all_of(ids.begin(), ids.end(), [](int32_t id) { return id >= 0; });
  if (whole) {
    byte_level_.emplace(ByteLevel{Bpe(ids, bpe.merges), last->add_prefix_space, bpe.ignore_merges,
                                  pattern});
  }
  if (!decoder_.byte_level()) return;
  // A token that words can be encoded to decodes by the byte alphabet; an added token that only its
  // own text yields decodes to that text.
  std::vector<bool> from_words(texts_.size(), bpe.ignore_merges);
  for (int32_t id : ids) {
    if (id >= 0) from_words[id] = true;
  }
  for (const MergeRule& merge : bpe.merges) from_words[merge.result] = true;
  bytes_ = texts_;
  std::vector<bool> verbatim(texts_.size(), false);
  for (const AddedToken& token : spec_.added) verbatim[token.id] = !from_words[token.id];
  for (size_t id = 0; id < texts_.size(); ++id) {
    if (!verbatim[id]) bytes_[id] = from_alphabet(texts_[id]).value_or(texts_[id]);
  }
}

void PipelineTokenizer::check_id(int32_t id) const {
  if (id >= 0 && id < vocab_size() && !texts_[id].empty()) return;
  throw base::ConfigError(
      fmt::format("token id {} is outside the tokenizer's vocabulary of {} tokens (0 to {})", id,
                  vocab_size(), vocab_size() - 1));
}

void PipelineTokenizer::cut(std::string_view text, size_t begin, size_t end, bool beginning,
                            Pieces& pieces) const {
  NormalizedText normalized(text, begin, end);
  normalizer_.apply(normalized, beginning);
  const NormalizedText* all = pieces.own(std::move(normalized));
  if (normalized_) {
    std::vector<AddedTokens::Span> spans;
    normalized_->split(all->view(), spans);
    for (const auto& span : spans) {
      if (span.begin < span.end) pieces.list.push_back({all, span.begin, span.end, span.id});
    }
  } else if (all->size() > 0) {
    pieces.list.push_back({all, 0, all->size(), -1});
  }
  pre_tokenizer_.apply(pieces);
}

// The ids of [begin, end), which must hold no added token of the first kind.
void PipelineTokenizer::encode_pieces(std::string_view text, size_t begin, size_t end,
                                      bool beginning, std::vector<int32_t>& ids) const {
  Pieces pieces;
  cut(text, begin, end, beginning, pieces);
  std::vector<Model::Token> tokens;
  for (const Piece& piece : pieces.list) {
    if (piece.added >= 0) {
      ids.push_back(piece.added);
      continue;
    }
    tokens.clear();
    model_->encode(piece.view(), tokens);
    for (const Model::Token& token : tokens) ids.push_back(token.id);
  }
}

void PipelineTokenizer::encode_words(std::string_view text, size_t begin, size_t end,
                                     bool beginning, WordCache& cache,
                                     std::vector<int32_t>& ids) const {
  const char *p = text.data() + begin, *stop = text.data() + end;
  auto encode = [&](std::string_view word, std::vector<int32_t>& out) {
    const size_t at = word.data() - text.data();
    encode_pieces(text, at, at + word.size(), false, out);
  };
  if (words_ == Words::between_spaces) {
    while (p < stop) {
      const auto [end_of_word, next] = spaced_word(p, stop);
      const std::string_view word(p, end_of_word - p);
      if (marks_beginning_ && beginning) {
        encode(word, ids);
      } else if (!word.empty()) {
        cache.append(word, stop, ids, encode);
      }
      beginning = false;
      p = next;
    }
    return;
  }
  if (marks_beginning_ && beginning && p < stop) {
    const char* next = plain_word_end(p, stop);
    encode_pieces(text, begin, next - text.data(), true, ids);
    p = next;
  }
  while (p < stop) {
    const char* next = plain_word_end(p, stop);
    cache.append({p, static_cast<size_t>(next - p)}, stop, ids, encode);
    p = next;
  }
}

// Byte-level BPE of a text without added tokens.
void PipelineTokenizer::encode_stretch(std::string_view text, bool beginning, WordCache& cache,
                                       std::vector<int32_t>& ids) const {
  std::string with_prefix;
  if (byte_level_->add_prefix_space && beginning && text[0] != ' ') {
    with_prefix.append(1, ' ').append(text);
    text = with_prefix;
  }
  auto encode_word = [this](std::string_view word, std::vector<int32_t>& out) {
    if (byte_level_->ignore_merges) {
      if (const int32_t id = model_->vocabulary().find(to_alphabet(word)); id >= 0) {
        out.push_back(id);
        return;
      }
    }
    byte_level_->bpe.encode(word, out);
  };
  const char *p = text.data(), *end = p + text.size();
  while (p < end) {
    const char* next = byte_level_->pattern ? word_end(*byte_level_->pattern, p, end) : end;
    cache.append({p, static_cast<size_t>(next - p)}, end, ids, encode_word);
    p = next;
  }
}

std::vector<int32_t> PipelineTokenizer::encode(std::string_view text, bool add_special) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 4);
  if (add_special) ids = before_;
  append_ids(text, true, ids);
  if (add_special) ids.insert(ids.end(), after_.begin(), after_.end());
  return ids;
}

std::vector<int32_t> PipelineTokenizer::encode_rest(std::string_view text) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 4);
  append_ids(text, false, ids);
  return ids;
}

std::optional<size_t> PipelineTokenizer::last_cut(std::string_view text) const {
  const bool by_word = byte_level_ ? byte_level_->pattern.has_value() : words_ != Words::none;
  if (!by_word || !cuts_before_space_ || text.size() < 3) return std::nullopt;
  const bool behind_line = byte_level_ && cuts_behind_line_;
  const char *begin = text.data(), *end = begin + text.size();
  const auto printable = [](char c) { return c > ' ' && c < 0x7F; };
  // All known patterns end a word behind a single line's end between two characters that are no
  // whitespace, but that o200k's takes a slash along. A character at an edge may not be whole.
  const auto single_line_end = [&](const char* p) {
    if (p - begin < 5 || end - p < 4 || *p == '/' || *p == '\n' || *p == '\r') return false;
    const CodePoint before = decode_utf8_before(begin, p - 1), after = decode_utf8(p, end);
    return !is_space(before.value) && !is_space(after.value);
  };
  for (const char* p = end; --p > begin + 1;) {
    if (p[-1] == ' ' && printable(p[0]) && printable(p[-2])) return p - 1 - begin;
    if (behind_line && p[-1] == '\n' && single_line_end(p)) return p - begin;
  }
  return std::nullopt;
}

void PipelineTokenizer::append_ids(std::string_view text, bool beginning,
                                   std::vector<int32_t>& ids) const {
  WordCachePool::Lease lease(caches_);
  auto encode_plain = [&](size_t begin, size_t end) {
    if (begin == end) return;
    if (byte_level_) {
      encode_stretch(text.substr(begin, end - begin), beginning || begin > 0, lease.cache(), ids);
    } else if (words_ != Words::none) {
      encode_words(text, begin, end, beginning || begin > 0, lease.cache(), ids);
    } else {
      encode_pieces(text, begin, end, true, ids);
    }
  };
  std::vector<AddedTokens::Span> spans, inner;
  const AddedTokens* first = raw_ ? &*raw_ : nullptr;
  if (first) {
    first->split(text, spans);
  } else {
    spans = {{0, text.size(), -1}};
  }
  for (const auto& span : spans) {
    if (span.id >= 0) {
      ids.push_back(span.id);
    } else if (byte_level_ && normalized_) {  // nothing is normalized: the text is searched as it is
      const std::string_view stretch = text.substr(span.begin, span.end - span.begin);
      normalized_->split(stretch, inner);
      for (const auto& part : inner) {
        if (part.id >= 0) {
          ids.push_back(part.id);
        } else {
          encode_plain(span.begin + part.begin, span.begin + part.end);
        }
      }
    } else {
      encode_plain(span.begin, span.end);
    }
  }
}

Encoding PipelineTokenizer::encode_text(std::string_view text, int32_t type,
                                        const std::function<double()>& draw) const {
  std::vector<AddedTokens::Span> spans = {{0, text.size(), -1}};
  if (raw_) raw_->split(text, spans);
  Encoding encoding;
  const CharacterIndex characters(text);
  int32_t word = 0;
  std::vector<Model::Token> tokens;
  auto offsets = [&](NormalizedText::Range range) {
    return Encoding::Offsets{characters.at(range.begin), characters.at(range.end)};
  };
  Pieces pieces;
  for (const auto& span : spans) {
    if (span.begin == span.end) continue;
    if (span.id >= 0) {
      encoding.add(span.id, type, std::string(text.substr(span.begin, span.end - span.begin)),
                   word++,
                   offsets({static_cast<uint32_t>(span.begin), static_cast<uint32_t>(span.end)}),
                   false);
      continue;
    }
    pieces.clear();
    cut(text, span.begin, span.end, true, pieces);
    for (const Piece& piece : pieces.list) {
      if (piece.added >= 0) {
        encoding.add(piece.added, type, std::string(piece.view()), word++,
                     offsets(piece.text->origin(piece.begin, piece.end)), false);
        continue;
      }
      tokens.clear();
      draw ? model_->sample(piece.view(), tokens, draw) : model_->encode(piece.view(), tokens);
      for (const Model::Token& token : tokens) {
        // Bytes of an affix may reach past the piece; they belong to its last one.
        const size_t end = std::min(piece.begin + token.end, piece.end);
        const size_t begin = std::min(piece.begin + token.begin, end - 1);
        encoding.add(token.id, type,
                     std::string(token.verbatim ? piece.view().substr(token.begin,
                                                                      token.end - token.begin)
                                                : written(token.id)),
                     word, offsets(piece.text->origin(begin, end)), false);
      }
      ++word;
    }
  }
  return encoding;
}

std::vector<int32_t> PipelineTokenizer::sample(std::string_view text, uint64_t key) const {
  uint64_t index = 0;
  return encode_text(text, 0, [&] {
           const uint64_t at = index++;
           return base::uniform(base::philox(key, {static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32), 0, 4})[0]);
         }).ids;
}

Encoding PipelineTokenizer::finish(Encoding first, Encoding* second, bool add_special,
                                   const Truncation* truncation) const {
  if (truncation) {
    truncation->apply(first, second, add_special ? post_processor_.added(second) : 0);
  }
  return post_processor_.apply(first, second, add_special);
}

Encoding PipelineTokenizer::encoding(std::string_view text, std::optional<std::string_view> pair,
                                     bool add_special) const {
  std::optional<Encoding> second;
  if (pair) second = encode_text(*pair, 1);
  std::vector<Encoding> batch;
  batch.push_back(
      finish(encode_text(text, 0), second ? &*second : nullptr, add_special, own_truncation()));
  if (padding_) padding_->apply(batch);
  return std::move(batch[0]);
}

Encoding PipelineTokenizer::encoding(std::string_view text, std::optional<std::string_view> pair,
                                     const Truncation& truncation) const {
  std::optional<Encoding> second;
  if (pair) second = encode_text(*pair, 1);
  return finish(encode_text(text, 0), second ? &*second : nullptr, true, &truncation);
}

std::vector<Encoding> PipelineTokenizer::encodings(std::span<const std::string_view> texts,
                                                   bool add_special, int threads) const {
  std::vector<Encoding> batch(texts.size());
  base::parallel_for(static_cast<int64_t>(texts.size()),
                     threads > 0 ? threads : base::available_cores(), [&](int64_t i) {
    batch[i] = finish(encode_text(texts[i], 0), nullptr, add_special, own_truncation());
  });
  if (padding_) padding_->apply(batch);
  return batch;
}

std::vector<Token> PipelineTokenizer::encode_with_offsets(std::string_view text,
                                                          bool add_special) const {
  const Encoding encoding = finish(encode_text(text, 0), nullptr, add_special, nullptr);
  std::vector<Token> tokens;
  tokens.reserve(encoding.size());
  for (size_t i = 0; i < encoding.size(); ++i) {
    tokens.push_back({encoding.ids[i], encoding.offsets[i].begin, encoding.offsets[i].end});
  }
  return tokens;
}

std::string PipelineTokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string text;
  std::vector<std::string> tokens;
  for (int32_t id : ids) {
    check_id(id);
    if (skip_special && special_[id]) continue;
    if (!bytes_.empty()) {
      text += bytes_[id];
    } else {
      const auto normal = normal_forms_.find(id);
      tokens.push_back(normal == normal_forms_.end() ? texts_[id] : normal->second);
    }
  }
  return bytes_.empty() ? decoder_.decode(std::move(tokens)) : text;
}

std::string PipelineTokenizer::token(int32_t id) const {
  check_id(id);
  return texts_[id];
}

std::optional<int32_t> PipelineTokenizer::find(std::string_view token) const {
  auto found = ids_.find(token);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

bool PipelineTokenizer::is_special(int32_t id) const {
  return id >= 0 && id < vocab_size() && special_[id];
}

void PipelineTokenizer::save(const std::string& folder) const {
  write_tokenizer_files(spec_, folder);
}

}  // namespace trireme::text
