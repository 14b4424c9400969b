#pragma once
// Companions: what transformers writes beside a vocabulary file and says how it is used:
// tokenizer_config.json, special_tokens_map.json, added_tokens.json. All are optional. A
// tokenizer.json says all of this itself and needs only the token that ends documents.
//
//   const Companions beside("gpt2/vocab.json");
//   beside.check_class({"GPT2Tokenizer"});
//   const std::string unk = beside.role("unk_token", "<unk>");

#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/text/added_tokens.h"

namespace trireme::text {

class Companions {
 public:
  /// FormatError, with file and place, for a companion that is damaged.
  explicit Companions(const std::string& vocabulary_file);

  /// The class of Python that the files were made for, without "Fast"; empty where none is named.
  const std::string& tokenizer_class() const { return class_; }
  /// FormatError where the class named is none of these: it may cut texts in its own way.
  void check_class(std::initializer_list<std::string_view> known) const;
  /// The text of a special token such as "eos_token".
  std::string role(const std::string& name, const std::string& otherwise) const;
  /// A setting such as "add_prefix_space".
  bool flag(const std::string& name, bool otherwise) const;
  /// Appends the added and special tokens that `added` does not hold, each with its id in the
  /// vocabulary or else the next free one. FormatError where the files say another id.
  void add_tokens(std::span<const std::string> vocabulary, std::vector<AddedToken>& added) const;

 private:
  std::string file_, class_;
  std::map<std::string, AddedToken> roles_;
  std::map<std::string, bool> flags_;
  std::vector<AddedToken> added_;     // in order of ids
  std::vector<std::string> special_;  // texts of further special tokens
};

}  // namespace trireme::text
