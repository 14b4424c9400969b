#pragma once
// Roles: what special tokens are for, as transformers names it ("bos_token", "pad_token", ...), and
// which tokens stand around a text. A role is the text of a token; it lives in TokenizerSpec's
// settings, under its name.
//
//   name_roles(spec);                          // a trainer's tokens, by their usual names
//   put_around(spec, "<s>", "");               // "<s> A", "<s> A <s> B"

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/text/tokenizer_spec.h"

namespace trireme::text {

inline constexpr std::string_view kEndOfText = "<|endoftext|>";  // GPT-2\'s only special token
inline constexpr const char* kRoles[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                         "pad_token", "cls_token", "mask_token"};

/// What a class of transformers presumes where its files say nothing else.
struct ClassDefaults {
  std::vector<std::string_view> names =
      {};  // of the class and those that are alike, without "Fast"
  std::vector<std::pair<const char*, std::string_view>> roles = {};
  bool token_types = false;  // models take token_type_ids
  bool pads_left = false;

  /// "model_input_names".
  std::vector<std::string> inputs() const {
    if (token_types) return {"input_ids", "token_type_ids", "attention_mask"};
    return {"input_ids", "attention_mask"};
  }
};
/// Null for a class that is not known.
const ClassDefaults* defaults_of(std::string_view tokenizer_class);

/// The id of a token, added or of the vocabulary.
std::optional<int32_t> id_of(const TokenizerSpec& spec, std::string_view token);
/// The text of an id; empty where it has none.
std::string text_of(const TokenizerSpec& spec, int32_t id);

/// Gives the special tokens of a trained tokenizer their roles: what ends documents, then by the
/// usual names. "<|endoftext|>" begins texts and is unknown text too, as GPT-2 has it.
void name_roles(TokenizerSpec& spec);

/// A part of what a text becomes: "$A", "$B" (the text, its pair) or a token, with its type id.
struct TemplatePart {
  std::string text;
  int type = 0;
};
/// Makes a text `single` and a pair `pair` in place of what was done to them.
void put_template(TokenizerSpec& spec, std::span<const TemplatePart> single,
                  std::span<const TemplatePart> pair);
/// Puts one token before and one behind each text (empty: none) in place of what stood there.
void put_around(TokenizerSpec& spec, const std::string& before, const std::string& after);
/// BERT's: "cls A sep", "cls A sep B sep" with the type 1 for B and what follows.
void put_bert_template(TokenizerSpec& spec, const std::string& cls, const std::string& sep);

}  // namespace trireme::text
