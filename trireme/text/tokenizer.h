#pragma once
// Tokenizer: text to token ids and back, as Hugging Face's `tokenizers` does it.
//
// Text is any byte string: bytes that are not UTF-8 count as one character each and come back as
// they were. Nothing is lost: decode(encode(x)) == x (but for a prefix space that the files ask to
// add, and whitespace that an added token is declared to swallow).
//
//   auto tokenizer = Tokenizer::load("runs/tokenizer");
//   std::vector<int32_t> ids = tokenizer->encode("The quick brown fox");

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::text {

struct Token {
  int32_t id = 0;
  int64_t begin = 0, end = 0;  // offsets in characters of the input
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// A folder with tokenizer.json, or with vocab.json (encoder.json) and merges.txt (vocab.bpe); or
  /// one such file. FormatError names the file and the place; ConfigError names a feature that is
  /// not supported.
  static std::unique_ptr<Tokenizer> load(const std::string& path);

  /// Ids of a text; special tokens written out in the text are recognised. `add_special` also adds
  /// those that the files put around a text. ConfigError for a byte that the vocabulary lacks.
  /// Thread-safe.
  virtual std::vector<int32_t> encode(std::string_view text, bool add_special = false) const = 0;
  /// The same with offsets; added special tokens have offsets (0, 0). Thread-safe.
  virtual std::vector<Token> encode_with_offsets(std::string_view text,
                                                 bool add_special = false) const = 0;
  /// Bytes of the ids; decode(encode(x)) == x byte for byte. ConfigError for an id outside the
  /// vocabulary.
  virtual std::string decode(std::span<const int32_t> ids, bool skip_special = false) const = 0;
  /// The token's text as the vocabulary writes it. ConfigError for an id outside the vocabulary.
  virtual std::string token(int32_t id) const = 0;
  virtual std::optional<int32_t> find(std::string_view token) const = 0;
  /// Highest id + 1, added tokens included.
  virtual int32_t vocab_size() const = 0;
  /// Whether `decode` leaves the token out when asked to skip special tokens.
  virtual bool is_special(int32_t id) const = 0;
  /// The id that ends a document (tokenizer_config.json's `eos_token`, else "<|endoftext|>"), where
  /// there is one.
  virtual std::optional<int32_t> end_of_document() const = 0;
  /// Writes tokenizer.json and tokenizer_config.json; Hugging Face's library loads the folder.
  /// Creates it.
  virtual void save(const std::string& folder) const = 0;
};

}  // namespace trireme::text
