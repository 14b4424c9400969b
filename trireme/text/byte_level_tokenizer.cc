#include "trireme/text/byte_level_tokenizer.h"

#include <algorithm>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/text/byte_alphabet.h"
#include "trireme/text/gpt2_scanner.h"
#include "trireme/text/unicode.h"

namespace trireme::text {
namespace {

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

// Which character of a text a byte belongs to; cheap when asked in order.
class CharacterIndex {
 public:
  explicit CharacterIndex(std::string_view text) : text_(text) {}
  int64_t at(size_t byte) {
    if (byte < begin_) begin_ = next_ = 0, index_ = -1;
    while (next_ <= byte) {
      begin_ = next_;
      next_ += decode_utf8(text_.data() + begin_, text_.data() + text_.size()).length;
      ++index_;
    }
    return index_;
  }

 private:
  std::string_view text_;
  size_t begin_ = 0, next_ = 0;  // the current character in bytes
  int64_t index_ = -1;
};

}  // namespace

ByteLevelTokenizer::ByteLevelTokenizer(ByteLevelSpec spec)
    : spec_(std::move(spec)),
      added_(spec_.added),
      texts_(spec_.vocabulary),
      bpe_(byte_ids(spec_.vocabulary), spec_.merges) {
  // A token that words can be encoded to decodes by the byte alphabet; an added token that only its
  // own text yields decodes to that text.
  std::vector<bool> from_words(texts_.size(), spec_.ignore_merges);
  for (int32_t id : byte_ids(spec_.vocabulary)) {
    if (id >= 0) from_words[id] = true;
  }
  for (const MergeRule& merge : spec_.merges) from_words[merge.result] = true;
  for (const AddedToken& token : added_.all()) {
    const size_t size = std::max(texts_.size(), static_cast<size_t>(token.id) + 1);
    texts_.resize(size);
    from_words.resize(size, false);
    special_.resize(size, false);
    texts_[token.id] = token.content;
    special_[token.id] = token.special;
  }
  special_.resize(texts_.size(), false);
  std::vector<bool> verbatim(texts_.size(), false);
  for (const AddedToken& token : added_.all()) verbatim[token.id] = !from_words[token.id];
  ids_.reserve(texts_.size());
  for (size_t id = 0; id < texts_.size(); ++id) {
    begins_.push_back(bytes_.size());
    auto decoded = verbatim[id] ? std::nullopt : from_alphabet(texts_[id]);
    bytes_ += decoded.value_or(texts_[id]);
    ids_.emplace(texts_[id], static_cast<int32_t>(id));
  }
  begins_.push_back(bytes_.size());
}

std::string_view ByteLevelTokenizer::bytes(int32_t id) const {
  return std::string_view(bytes_).substr(begins_[id], begins_[id + 1] - begins_[id]);
}

void ByteLevelTokenizer::check_id(int32_t id) const {
  if (id >= 0 && id < vocab_size()) return;
  throw base::ConfigError(
      fmt::format("token id {} is outside the tokenizer's vocabulary of {} tokens (0 to {})", id,
                  vocab_size(), vocab_size() - 1));
}

bool ByteLevelTokenizer::needs_prefix(std::string_view stretch) const {
  return spec_.add_prefix_space && stretch[0] != ' ';
}

// Appends the ids of a text without added tokens.
void ByteLevelTokenizer::encode_stretch(std::string_view text, WordCache& cache,
                                        std::vector<int32_t>& ids) const {
  std::string with_prefix;
  if (needs_prefix(text)) {
    with_prefix.append(1, ' ').append(text);
    text = with_prefix;
  }
  auto encode_word = [this](std::string_view word, std::vector<int32_t>& out) {
    if (spec_.ignore_merges) {
      if (auto id = ids_.find(to_alphabet(word)); id != ids_.end()) {
        out.push_back(id->second);
        return;
      }
    }
    bpe_.encode(word, out);
  };
  const char *p = text.data(), *end = p + text.size();
  while (p < end) {
    const char* next = spec_.use_regex ? gpt2_piece_end(p, end) : end;
    cache.append({p, static_cast<size_t>(next - p)}, end, ids, encode_word);
    p = next;
  }
}

std::vector<int32_t> ByteLevelTokenizer::encode(std::string_view text, bool add_special) const {
  std::vector<AddedTokens::Span> spans;
  added_.split(text, spans);
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 4);
  if (add_special) ids = spec_.before;
  WordCachePool::Lease lease(caches_);
  for (const auto& span : spans) {
    if (span.id >= 0) {
      ids.push_back(span.id);
      continue;
    }
    encode_stretch(text.substr(span.begin, span.end - span.begin), lease.cache(), ids);
  }
  if (add_special) ids.insert(ids.end(), spec_.after.begin(), spec_.after.end());
  return ids;
}

std::vector<Token> ByteLevelTokenizer::encode_with_offsets(std::string_view text,
                                                           bool add_special) const {
  std::vector<AddedTokens::Span> spans;
  added_.split(text, spans);
  std::vector<Token> tokens;
  if (add_special) {
    for (int32_t id : spec_.before) tokens.push_back({id, 0, 0});
  }
  CharacterIndex begins(text), lasts(text);
  bool first = true;
  auto push = [&](int32_t id, size_t begin, size_t last, std::string_view written) {
    tokens.push_back({id, begins.at(begin), lasts.at(last) + 1});
    if (spec_.trim_offsets) trim(tokens.back(), written, std::exchange(first, false));
  };
  std::vector<int32_t> ids;
  WordCachePool::Lease lease(caches_);
  for (const auto& span : spans) {
    const std::string_view stretch = text.substr(span.begin, span.end - span.begin);
    if (span.id >= 0) {
      push(span.id, span.begin, span.end - 1, stretch);
      continue;
    }
    const bool prefix = needs_prefix(stretch);
    ids.clear();
    encode_stretch(stretch, lease.cache(), ids);
    // The prefix space counts as part of the stretch's first character.
    auto in_text = [&](size_t byte) { return span.begin + (prefix && byte > 0 ? byte - 1 : byte); };
    size_t at = 0;
    for (int32_t id : ids) {
      const size_t last = at + bytes(id).size() - 1;
      push(id, in_text(at), in_text(last), texts_[id]);
      at = last + 1;
    }
  }
  if (add_special) {
    for (int32_t id : spec_.after) tokens.push_back({id, 0, 0});
  }
  return tokens;
}

// Hugging Face's `trim_offsets`; `written` is the token's text, or what an added token matched.
void ByteLevelTokenizer::trim(Token& token, std::string_view written, bool first) const {
  auto is_space = [](CodePoint c) {
    return c.value == alphabet_char(' ') || char_class(c.value) == CharClass::space;
  };
  const char *begin = written.data(), *end = begin + written.size();
  int64_t leading = 0, trailing = 0;
  for (const char* p = begin; p < end; ++leading) {
    CodePoint c = decode_utf8(p, end);
    if (!is_space(c)) break;
    p += c.length;
  }
  for (const char* p = end; p > begin; ++trailing) {
    CodePoint c = decode_utf8_before(begin, p);
    if (!is_space(c)) break;
    p -= c.length;
  }
  if ((first || token.begin == 0) && spec_.trim_keeps_prefix && leading == 1) leading = 0;
  token.begin = std::min(token.begin + leading, token.end);
  if (token.end >= trailing) token.end = std::max(token.end - trailing, token.begin);
}

std::string ByteLevelTokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string text;
  for (int32_t id : ids) {
    check_id(id);
    if (!skip_special || !special_[id]) text += bytes(id);
  }
  return text;
}

std::string ByteLevelTokenizer::token(int32_t id) const {
  check_id(id);
  return texts_[id];
}

std::optional<int32_t> ByteLevelTokenizer::find(std::string_view token) const {
  auto found = ids_.find(token);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

bool ByteLevelTokenizer::is_special(int32_t id) const {
  check_id(id);
  return special_[id];
}

}  // namespace trireme::text
