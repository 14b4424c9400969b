#pragma once
// ByteLevelTokenizer: added tokens, GPT-2's cut into words, byte-pair encoding of each word's
// bytes.
//
// ByteLevelSpec is all that a tokenizer's files say; tokenizer_files reads and writes it, the
// trainer makes it.

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "trireme/text/added_tokens.h"
#include "trireme/text/bpe.h"
#include "trireme/text/tokenizer.h"
#include "trireme/text/word_cache.h"

namespace trireme::text {

struct ByteLevelSpec {
  std::vector<std::string> vocabulary;  // the model's tokens by id, in the byte alphabet
  std::vector<MergeRule> merges;
  bool ignore_merges = false;  // a word that is a token is not merged at all
  std::optional<std::string>
      unk_token;  // kept for the files; bytes outside the vocabulary are refused
  bool fuse_unk = false;
  std::vector<AddedToken> added;       // ids may lie in the vocabulary or behind it
  bool add_prefix_space = false;       // a space before a stretch of text that has none
  bool use_regex = true;               // cut with GPT-2's pattern, else each stretch is one word
  bool trim_offsets = false;           // offsets leave out a token's outer spaces
  bool trim_keeps_prefix = true;       // but for one at the text's beginning
  std::vector<int32_t> before, after;  // special tokens around a text
  std::optional<int32_t> end_of_document;
};

class ByteLevelTokenizer final : public Tokenizer {
 public:
  explicit ByteLevelTokenizer(ByteLevelSpec spec);
  const ByteLevelSpec& spec() const { return spec_; }

  std::vector<int32_t> encode(std::string_view text, bool add_special) const override;
  std::vector<Token> encode_with_offsets(std::string_view text, bool add_special) const override;
  std::string decode(std::span<const int32_t> ids, bool skip_special) const override;
  std::string token(int32_t id) const override;
  std::optional<int32_t> find(std::string_view token) const override;
  int32_t vocab_size() const override { return static_cast<int32_t>(begins_.size()) - 1; }
  bool is_special(int32_t id) const override;
  std::optional<int32_t> end_of_document() const override { return spec_.end_of_document; }
  void save(const std::string& folder) const override;

 private:
  bool needs_prefix(std::string_view stretch) const;
  void encode_stretch(std::string_view text, WordCache& cache, std::vector<int32_t>& ids) const;
  std::string_view bytes(int32_t id) const;
  void check_id(int32_t id) const;
  void trim(Token& token, std::string_view written, bool first) const;

  ByteLevelSpec spec_;
  AddedTokens added_;
  std::vector<std::string> texts_;  // by id, as the vocabulary writes them
  std::unordered_map<std::string_view, int32_t> ids_;
  std::string bytes_;           // what the tokens decode to, one after the other
  std::vector<size_t> begins_;  // by id, in bytes_; one more at the end
  std::vector<bool> special_;
  Bpe bpe_;
  mutable WordCachePool caches_;
};

}  // namespace trireme::text
