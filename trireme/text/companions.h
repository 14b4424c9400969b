#pragma once
// Companions: what transformers writes beside a vocabulary file and says how it is used:
// tokenizer_config.json, special_tokens_map.json, added_tokens.json, chat_template.jinja. All are
// optional. A tokenizer.json says itself how texts are cut; there they give roles and settings.
//
//   const Companions beside("gpt2/vocab.json");
//   beside.check_class({"GPT2Tokenizer"});
//   const std::string unk = beside.role("unk_token", "<unk>");
//   ...
//   beside.describe(spec);

#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/text/added_tokens.h"
#include "trireme/text/tokenizer_spec.h"

namespace trireme::text {

class Companions {
 public:
  /// `otherwise` is the class where none is named. FormatError, with file and place, for a
  /// companion that is damaged.
  explicit Companions(const std::string& vocabulary_file, std::string_view otherwise = "");

  /// The class of Python that the files were made for, without "Fast"; empty where none is named.
  const std::string& tokenizer_class() const { return class_; }
  /// FormatError where the class named is none of these: it may cut texts in its own way.
  void check_class(std::initializer_list<std::string_view> known) const;
  /// The text of a special token such as "eos_token".
  std::string role(const std::string& name, const std::string& otherwise) const;
  /// A setting such as "add_prefix_space".
  bool flag(const std::string& name, bool otherwise) const;
  /// A setting that need not be there.
  std::optional<bool> flag(const std::string& name) const;
  /// A setting that counts, such as "extra_ids".
  int64_t number(const std::string& name, int64_t otherwise) const;
  /// Appends the added and special tokens that `added` does not hold, each with its id in the
  /// vocabulary or else the next free one. FormatError where the files say another id.
  void add_tokens(std::span<const std::string> vocabulary, std::vector<AddedToken>& added) const;
  /// Completes what was read from the vocabulary: the class's roles that are tokens, then what the
  /// files say, go into the settings; `eos_token` ends documents (else "<|endoftext|>" does, where
  /// nothing else is known). FormatError where that is no token.
  void describe(TokenizerSpec& spec) const;
  /// Puts the tokens around texts that `add_bos_token` and `add_eos_token` ask for, where the files
  /// have these; a tokenizer.json says itself what stands there. After `describe`.
  void put_ends(TokenizerSpec& spec) const;

 private:
  struct Role {
    AddedToken token;
    std::string file;  // that says it
  };
  [[noreturn]] void refuse(const std::string& name, const std::string& what) const;

  std::string file_, class_;
  std::map<std::string, Role> roles_;
  std::map<std::string, bool> flags_;
  std::map<std::string, int64_t> numbers_;
  base::Json settings_ = base::Json::object();  // null: declared to be nothing
  std::vector<AddedToken> added_;               // in order of ids
  std::vector<std::string> special_;            // texts of further special tokens
};

}  // namespace trireme::text
