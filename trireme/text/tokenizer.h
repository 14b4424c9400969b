#pragma once
// Tokenizer: text to token ids and back, as Hugging Face's `tokenizers` does it: normalizer,
// pre-tokenizer, model, post-processor, decoder, added tokens (docs/tokenizers.md).
//
// Text is any byte string: a byte that is not part of UTF-8 counts as one character that no
// vocabulary holds. A byte-level tokenizer gives it back as it was; decode(encode(x)) == x (but for
// a prefix space that the files ask to add, and whitespace that an added token is declared to
// swallow).
//
//   auto tokenizer = Tokenizer::load("runs/tokenizer");
//   std::vector<int32_t> ids = tokenizer->encode("The quick brown fox");
//   Encoding pair = tokenizer->encoding("a question", "a text");

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/text/encoding.h"

namespace trireme::text {

struct Token {
  int32_t id = 0;
  int64_t begin = 0, end = 0;  // offsets in characters of the input
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// A folder or one of its files: tokenizer.json; vocab.json (encoder.json) with merges.txt
  /// (vocab.bpe); vocab.txt; spiece.model or tokenizer.model; NAME.tiktoken. FormatError names the
  /// file and the place of what is damaged or not supported.
  static std::unique_ptr<Tokenizer> load(const std::string& path);

  /// Ids of a text; special tokens written out in the text are recognised. `add_special` also adds
  /// those that the files put around a text. Never truncates or pads. ConfigError for a character
  /// that the vocabulary cannot express. Thread-safe.
  virtual std::vector<int32_t> encode(std::string_view text, bool add_special = false) const = 0;
  /// The last place inside `text`, a part of a longer text, where that may be cut: `encode` of what
  /// stands before and `encode_rest` of what follows give the ids of the whole. Nothing where there
  /// is no such place, or the tokenizer must see a text whole.
  virtual std::optional<size_t> last_cut(std::string_view text) const = 0;
  /// `encode` without added special tokens of what follows a cut. Thread-safe.
  virtual std::vector<int32_t> encode_rest(std::string_view text) const = 0;
  /// Ids as `encode` gives them, where the model has a dropout (BPE's) with each merge left out with its probability;
  /// a function of the text and `key`. `encode` and `encoding` never drop anything.
  virtual std::vector<int32_t> sample(std::string_view text, uint64_t key) const = 0;
  /// `encode` with offsets; added special tokens have offsets (0, 0). Thread-safe.
  virtual std::vector<Token> encode_with_offsets(std::string_view text,
                                                 bool add_special = false) const = 0;
  /// All that a model takes, for a text or a pair of texts, truncated and padded as the files say.
  /// ConfigError where that cannot be. Thread-safe.
  virtual Encoding encoding(std::string_view text, std::optional<std::string_view> pair = {},
                            bool add_special = true) const = 0;
  /// The same with special tokens, cut as told here in place of as the files say, and not padded.
  virtual Encoding encoding(std::string_view text, std::optional<std::string_view> pair,
                            const Truncation& truncation) const = 0;
  /// Ids of many texts on `threads` threads (0: all cores); the first error of a text is thrown.
  std::vector<std::vector<int32_t>> encode_batch(std::span<const std::string_view> texts,
                                                 bool add_special = false, int threads = 0) const;
  /// Encodings of many texts, padded to the longest of them where the files ask for that.
  virtual std::vector<Encoding> encodings(std::span<const std::string_view> texts,
                                          bool add_special = true, int threads = 0) const = 0;
  /// Text of the ids. ConfigError for an id outside the vocabulary.
  virtual std::string decode(std::span<const int32_t> ids, bool skip_special = false) const = 0;
  /// The token's text as the vocabulary writes it. ConfigError for an id outside the vocabulary.
  virtual std::string token(int32_t id) const = 0;
  virtual std::optional<int32_t> find(std::string_view token) const = 0;
  /// Highest id + 1, added tokens included.
  virtual int32_t vocab_size() const = 0;
  /// Whether `decode` leaves the token out when asked to skip special tokens.
  virtual bool is_special(int32_t id) const = 0;
  /// "BPE", "WordPiece", "WordLevel" or "Unigram".
  virtual std::string type() const = 0;
  /// The id that ends a document (tokenizer_config.json's `eos_token`, else "<|endoftext|>"), where
  /// there is one.
  virtual std::optional<int32_t> end_of_document() const = 0;
  /// Writes tokenizer.json and tokenizer_config.json; Hugging Face's library loads the folder.
  /// Creates it.
  virtual void save(const std::string& folder) const = 0;
};

/// Text from ids that come one by one. What could still change is held back: the bytes of a
/// character that is not whole yet.
///
///   DecodeStream stream(tokenizer);
///   while (...) std::cout << stream.put(next_id());
///   std::cout << stream.finish();
class DecodeStream {
 public:
  explicit DecodeStream(const Tokenizer& tokenizer, bool skip_special = false)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}
  /// The text that is certain now and was not before; may be empty.
  std::string put(int32_t id);
  /// What is held back, as it is.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::vector<int32_t> ids_;  // a window: enough for the decoder to see what stands before
  std::string shown_;         // the text of the window that is out
  size_t next_window_ = 0;
};

}  // namespace trireme::text
