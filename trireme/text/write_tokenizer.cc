#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/base/json.h"
#include "trireme/text/tokenizer_spec.h"

namespace trireme::text {
namespace {

using base::Json;

// Appends a member without looking for its key, which makes a vocabulary of any size linear to
// build.
void append_member(Json& object, const std::string& key, Json value) {
  using Members = Json::object_t::Container;
  static_cast<Members&>(object.get_ref<Json::object_t&>()).emplace_back(key, std::move(value));
}

Json vocabulary_json(const std::vector<std::string>& tokens) {
  Json vocabulary = Json::object();
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (!tokens[id].empty()) append_member(vocabulary, tokens[id], id);
  }
  return vocabulary;
}

Json text_or_null(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

Json model_json(const BpeSpec& spec) {
  Json merges = Json::array();
  for (const MergeRule& merge : spec.merges) {
    merges.push_back(Json::array({spec.vocabulary[merge.left], spec.vocabulary[merge.right]}));
  }
  Json model = {{"type", "BPE"},
                {"dropout", spec.dropout > 0 ? Json(spec.dropout) : Json()},
                {"unk_token", spec.unk_token ? Json(*spec.unk_token) : Json()},
                {"continuing_subword_prefix", text_or_null(spec.continuing_prefix)},
                {"end_of_word_suffix", text_or_null(spec.word_suffix)},
                {"fuse_unk", spec.fuse_unk},
                {"byte_fallback", spec.byte_fallback},
                {"ignore_merges", spec.ignore_merges}};
  append_member(model, "vocab", vocabulary_json(spec.vocabulary));
  append_member(model, "merges", std::move(merges));
  return model;
}

Json model_json(const WordPieceSpec& spec) {
  Json model = {{"type", "WordPiece"},
                {"unk_token", spec.unk_token},
                {"continuing_subword_prefix", spec.continuing_prefix},
                {"max_input_chars_per_word", spec.max_characters}};
  append_member(model, "vocab", vocabulary_json(spec.vocabulary));
  return model;
}

Json model_json(const WordLevelSpec& spec) {
  Json model = {{"type", "WordLevel"}};
  append_member(model, "vocab", vocabulary_json(spec.vocabulary));
  append_member(model, "unk_token", spec.unk_token);
  return model;
}

Json model_json(const UnigramSpec& spec) {
  Json vocabulary = Json::array();
  for (size_t id = 0; id < spec.vocabulary.size(); ++id) {
    vocabulary.push_back(Json::array({spec.vocabulary[id], spec.scores[id]}));
  }
  Json model = {{"type", "Unigram"}, {"unk_id", spec.unk ? Json(*spec.unk) : Json()}};
  append_member(model, "vocab", std::move(vocabulary));
  append_member(model, "byte_fallback", spec.byte_fallback);
  return model;
}

Json stage_json(const std::string& stage) {
  return stage.empty() ? Json() : base::parse_json(stage, "a stage of the tokenizer");
}

Json tokenizer_json(const TokenizerSpec& spec) {
  Json added = Json::array();
  for (const AddedToken& token : spec.added) {
    added.push_back({{"id", token.id},
                     {"content", token.content},
                     {"single_word", token.single_word},
                     {"lstrip", token.lstrip},
                     {"rstrip", token.rstrip},
                     {"normalized", token.normalized},
                     {"special", token.special}});
  }
  Json document = {{"version", "1.0"},
                   {"truncation", stage_json(spec.truncation)},
                   {"padding", stage_json(spec.padding)},
                   {"added_tokens", added},
                   {"normalizer", stage_json(spec.normalizer)},
                   {"pre_tokenizer", stage_json(spec.pre_tokenizer)},
                   {"post_processor", stage_json(spec.post_processor)},
                   {"decoder", stage_json(spec.decoder)}};
  append_member(document, "model",
                std::visit([](const auto& model) { return model_json(model); }, spec.model));
  return document;
}

Json config_json(const TokenizerSpec& spec) {
  const Json pre_tokenizer = stage_json(spec.pre_tokenizer);
  Json config = Json::object();
  if (pre_tokenizer.is_object() && pre_tokenizer.value("type", "") == "ByteLevel") {
    config["add_prefix_space"] = pre_tokenizer.value("add_prefix_space", false);
  }
  config["clean_up_tokenization_spaces"] = false;
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  const std::vector<std::string>& vocabulary = model_vocabulary(spec.model);
  if (spec.end_of_document) {
    const int32_t id = *spec.end_of_document;
    std::string text = id < static_cast<int32_t>(vocabulary.size()) ? vocabulary[id] : "";
    for (const AddedToken& token : spec.added) {
      if (token.id == id) text = token.content;
    }
    if (std::holds_alternative<BpeSpec>(spec.model)) {
      for (const char* role : {"bos_token", "eos_token", "unk_token"}) config[role] = text;
    } else {
      config["eos_token"] = text;
    }
  }
  // BERT's special tokens by their names, so that transformers pads and masks with them.
  constexpr std::pair<const char*, std::string_view> kRoles[] = {{"unk_token", "[UNK]"},
                                                                 {"cls_token", "[CLS]"},
                                                                 {"sep_token", "[SEP]"},
                                                                 {"pad_token", "[PAD]"},
                                                                 {"mask_token", "[MASK]"}};
  for (const AddedToken& token : spec.added) {
    for (const auto& [role, name] : kRoles) {
      if (token.content == name) config[role] = token.content;
    }
  }
  return config;
}

}  // namespace

void write_tokenizer_files(const TokenizerSpec& spec, const std::string& folder) {
  base::make_folders(folder);
  base::write_file_atomic(folder + "/tokenizer.json", tokenizer_json(spec).dump(2));
  base::write_file_atomic(folder + "/tokenizer_config.json", config_json(spec).dump(2) + "\n");
}

}  // namespace trireme::text
