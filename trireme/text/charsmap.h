#pragma once
// Charsmap: SentencePiece's precompiled normalization, a double-array trie from character
// sequences to their replacements ("precompiled_charsmap" of a .model file, base64 in
// tokenizer.json). It is applied as Hugging Face's library does it, cluster by cluster, which
// differs from SentencePiece itself on decomposed text.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/text/normalized_text.h"

namespace trireme::text {

class Charsmap {
 public:
  /// `blob`: 4 bytes size of the trie, the trie (units of 4 bytes, little endian), replacements
  /// that end with a zero byte. FormatError (message only) for a blob that contradicts itself.
  explicit Charsmap(std::string_view blob);
  /// The replacement of the shortest beginning of `text` that has one.
  std::optional<std::string_view> find(std::string_view text) const;
  void apply(NormalizedText& text) const;

 private:
  std::vector<uint32_t> units_;
  std::string replacements_;
};

/// FormatError (message only) for text that is not base64.
std::string decode_base64(std::string_view text);
std::string encode_base64(std::string_view bytes);

}  // namespace trireme::text
