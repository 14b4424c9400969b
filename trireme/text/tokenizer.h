#pragma once
// Tokenizer: text to token ids and back, as Hugging Face's `tokenizers` does it.

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
  /// A folder with tokenizer.json, or with vocab.json and merges.txt; or one such file. FormatError names the
  /// file and the place.
  static std::unique_ptr<Tokenizer> load(const std::string& path);

  /// Ids of a text; special tokens written out in the text are recognised. Thread-safe.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  virtual std::vector<Token> encode_with_offsets(std::string_view text) const = 0;
  /// Bytes of the ids; decode(encode(x)) == x byte for byte. ConfigError for an id outside the vocabulary.
  virtual std::string decode(std::span<const int32_t> ids, bool skip_special = false) const = 0;
  /// The token's text as the vocabulary writes it.
  virtual std::string token(int32_t id) const = 0;
  virtual std::optional<int32_t> find(std::string_view token) const = 0;
  /// Highest id + 1, added tokens included.
  virtual int32_t vocab_size() const = 0;
  /// The id that ends a document ("<|endoftext|>" or what the files say), where there is one.
  virtual std::optional<int32_t> end_of_document() const = 0;
  /// Writes tokenizer.json and its companions; Hugging Face's library loads the folder.
  virtual void save(const std::string& folder) const = 0;
};

}  // namespace trireme::text
