#pragma once
// PipelineTokenizer: a TokenizerSpec at work.
//
// Encoding has three ways, all with the same ids. The full one follows every step on the whole text
// and knows where each token came from. Ids alone take shortcuts: byte-level BPE goes straight from
// words to ids, and a pipeline that works word by word is run on one word at a time, both with a
// cache of the words seen lately.

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "trireme/text/added_tokens.h"
#include "trireme/text/decoder.h"
#include "trireme/text/model.h"
#include "trireme/text/normalizer.h"
#include "trireme/text/post_processor.h"
#include "trireme/text/pre_tokenizer.h"
#include "trireme/text/tokenizer.h"
#include "trireme/text/tokenizer_spec.h"
#include "trireme/text/word_cache.h"

namespace trireme::text {

class PipelineTokenizer final : public Tokenizer {
 public:
  /// FormatError, which names `spec.source`, for a stage that is wrong or not supported.
  explicit PipelineTokenizer(TokenizerSpec spec);
  const TokenizerSpec& spec() const { return spec_; }

  std::vector<int32_t> encode(std::string_view text, bool add_special) const override;
  std::optional<size_t> last_cut(std::string_view text) const override;
  std::vector<int32_t> encode_rest(std::string_view text) const override;
  std::vector<Token> encode_with_offsets(std::string_view text, bool add_special) const override;
  std::vector<int32_t> sample(std::string_view text, uint64_t key) const override;
  Encoding encoding(std::string_view text, std::optional<std::string_view> pair,
                    bool add_special) const override;
  Encoding encoding(std::string_view text, std::optional<std::string_view> pair,
                    const Truncation& truncation) const override;
  std::vector<Encoding> encodings(std::span<const std::string_view> texts, bool add_special,
                                  int threads) const override;
  std::string decode(std::span<const int32_t> ids, bool skip_special) const override;
  std::string token(int32_t id) const override;
  std::optional<int32_t> find(std::string_view token) const override;
  int32_t vocab_size() const override { return static_cast<int32_t>(texts_.size()); }
  bool is_special(int32_t id) const override;
  std::string type() const override { return model_type(spec_.model); }
  std::optional<int32_t> end_of_document() const override { return spec_.end_of_document; }
  void save(const std::string& folder) const override;

 private:
  // Byte-level BPE without any other step.
  struct ByteLevel {
    Bpe bpe;
    bool add_prefix_space, ignore_merges;
    std::optional<WordPattern> pattern;  // nothing: a stretch is one word
  };

  void read_stages();
  void read_texts();
  void add_tokens();
  void find_shortcuts();
  void make_byte_level(const BpeSpec& bpe);

  /// The pieces of [begin, end) of a text, which holds no added token of the first kind.
  /// `beginning`: whether a stretch without such tokens begins there.
  void cut(std::string_view text, size_t begin, size_t end, bool beginning, Pieces& pieces) const;
  void encode_pieces(std::string_view text, size_t begin, size_t end, bool beginning,
                     std::vector<int32_t>& ids) const;
  void encode_stretch(std::string_view text, bool beginning, WordCache& cache,
                      std::vector<int32_t>& ids) const;
  void encode_words(std::string_view text, size_t begin, size_t end, bool beginning,
                    WordCache& cache, std::vector<int32_t>& ids) const;
  /// Appends the ids of a text, which is `beginning` or follows a cut.
  void append_ids(std::string_view text, bool beginning, std::vector<int32_t>& ids) const;
  /// `draw`: numbers for the model's dropout; null: there is none.
  Encoding encode_text(std::string_view text, int32_t type,
                       const std::function<double()>& draw = nullptr) const;
  Encoding finish(Encoding first, Encoding* second, bool add_special,
                  const Truncation* truncation) const;
  const Truncation* own_truncation() const { return truncation_ ? &*truncation_ : nullptr; }
  std::string_view written(int32_t id) const { return texts_[id]; }
  void check_id(int32_t id) const;

  TokenizerSpec spec_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  std::unique_ptr<Model> model_;
  PostProcessor post_processor_;
  Decoder decoder_;
  std::optional<Truncation> truncation_;
  std::optional<Padding> padding_;
  std::optional<AddedTokens> raw_, normalized_;  // matched in the text, in what is normalized
  std::vector<int32_t> before_, after_;
  std::vector<std::string> texts_;  // by id, as the vocabulary writes them; empty: no such id
  std::unordered_map<std::string_view, int32_t> ids_;
  std::vector<bool> special_;
  std::vector<std::string> bytes_;  // by id, what tokens decode to where each does so alone
  std::unordered_map<int32_t, std::string> normal_forms_;  // what normalized added tokens decode to
  std::optional<ByteLevel> byte_level_;
  // How the words are found that a pipeline may treat one by one; `between`: they hold no ASCII
  // whitespace at all.
  enum class Words { none, before_spaces, between_spaces };
  Words words_ = Words::none;
  bool marks_beginning_ = false;
  // Whether the added tokens allow cuts before a space, behind a line's end.
  bool cuts_before_space_ = true, cuts_behind_line_ = true;
  mutable WordCachePool caches_;
};

}  // namespace trireme::text
