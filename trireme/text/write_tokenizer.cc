#include <filesystem>

#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/base/json.h"
#include "trireme/text/byte_alphabet.h"
#include "trireme/text/roles.h"

namespace trireme::text {
namespace {

namespace fs = std::filesystem;
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

Json added_token_json(const AddedToken& token) {
  return {{"content", token.content},       {"single_word", token.single_word},
          {"lstrip", token.lstrip},         {"rstrip", token.rstrip},
          {"normalized", token.normalized}, {"special", token.special}};
}

// The class is the one that takes a tokenizer.json as it is; others build their stages anew.
Json config_json(const TokenizerSpec& spec) {
  Json config = spec.settings;
  const Json pre_tokenizer = stage_json(spec.pre_tokenizer),
             normalizer = stage_json(spec.normalizer);
  auto type = [](const Json& stage) { return stage.is_object() ? stage.value("type", "") : ""; };
  if (type(pre_tokenizer) == "ByteLevel") {
    config["add_prefix_space"] = pre_tokenizer.value("add_prefix_space", false);
  }
  if (type(normalizer) == "BertNormalizer") {  // what vocab.txt does not say
    config["do_lower_case"] = normalizer.value("lowercase", true);
    config["strip_accents"] = normalizer.value("strip_accents", Json());
    config["tokenize_chinese_chars"] = normalizer.value("handle_chinese_chars", true);
  }
  if (!config.contains("clean_up_tokenization_spaces")) {
    config["clean_up_tokenization_spaces"] = false;
  }
  if (spec.end_of_document && !config.contains("eos_token")) {
    config["eos_token"] = text_of(spec, *spec.end_of_document);
  }
  // Some files write "no limit" as a number that is none of an integer's.
  if (const auto longest = config.find("model_max_length");
      longest != config.end() && longest->is_number() && longest->get<double>() > 1e18) {
    config.erase("model_max_length");
  }
  Json& tokens = config["added_tokens_decoder"] = Json::object();
  for (const AddedToken& token : spec.added) {
    tokens[std::to_string(token.id)] = added_token_json(token);
  }
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  return config;
}

Json special_tokens_json(const TokenizerSpec& spec, const Json& config) {
  auto described = [&](const std::string& text) {
    for (const AddedToken& token : spec.added) {
      if (token.content != text) continue;
      Json json = added_token_json(token);
      json.erase("special");
      return json;
    }
    return Json(text);
  };
  Json map = Json::object();
  for (const char* role : kRoles) {
    if (config.contains(role)) map[role] = described(config[role].get<std::string>());
  }
  for (const char* name : {"additional_special_tokens", "extra_special_tokens"}) {
    if (!config.contains(name) || !config[name].is_array()) continue;
    map[name] = Json::array();
    for (const Json& token : config[name]) map[name].push_back(described(token.get<std::string>()));
  }
  return map;
}

bool has_holes(const std::vector<std::string>& vocabulary) {
  return std::ranges::find(vocabulary, "") != vocabulary.end();
}

// Whether the tokens are written in the alphabet of bytes, of which every one is there.
bool is_byte_level(const TokenizerSpec& spec, const BpeSpec& model) {
  if (!model.continuing_prefix.empty() || !model.word_suffix.empty() || has_holes(model.vocabulary))
    return false;
  const Json decoder = stage_json(spec.decoder);
  return decoder.is_object() && decoder.value("type", "") == "ByteLevel";
}

/// The files that say the model alone, by name.
std::vector<std::pair<std::string, std::string>> vocabulary_files(const TokenizerSpec& spec) {
  if (const auto* bpe = std::get_if<BpeSpec>(&spec.model); bpe && is_byte_level(spec, *bpe)) {
    std::string merges = "#version: 0.2\n";
    for (const MergeRule& merge : bpe->merges) {
      merges += bpe->vocabulary[merge.left] + ' ' + bpe->vocabulary[merge.right] + '\n';
    }
    return {{"vocab.json", vocabulary_json(bpe->vocabulary).dump()}, {"merges.txt", merges}};
  }
  if (const auto* words = std::get_if<WordPieceSpec>(&spec.model);
      words && words->continuing_prefix == "##" && !has_holes(words->vocabulary)) {
    std::string lines;
    for (const std::string& token : words->vocabulary) {
      if (token.find_first_of("\r\n") != std::string::npos) return {};
      lines += token + '\n';
    }
    return {{"vocab.txt", lines}};
  }
  return {};
}

// Keys in order, as transformers writes them.
std::string sorted(const Json& json) {
  return nlohmann::json::parse(json.dump()).dump(2) + "\n";
}

}  // namespace

Json tokenizer_json(const TokenizerSpec& spec) {
  Json added = Json::array();
  for (const AddedToken& token : spec.added) {
    added.push_back({{"id", token.id}});
    added.back().update(added_token_json(token));
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

void write_tokenizer_files(const TokenizerSpec& spec, const std::string& folder) {
  base::make_folders(folder);
  const Json config = config_json(spec);
  const auto vocabulary = vocabulary_files(spec);
  base::write_file_atomic(folder + "/tokenizer.json", tokenizer_json(spec).dump(2));
  base::write_file_atomic(folder + "/tokenizer_config.json", sorted(config));
  base::write_file_atomic(folder + "/special_tokens_map.json",
                          sorted(special_tokens_json(spec, config)));
  for (const char* name : {"vocab.json", "merges.txt", "vocab.txt", "added_tokens.json",
                           "chat_template.jinja", "additional_chat_templates"}) {
    fs::remove_all(fs::path(folder) / name);
  }
  for (const auto& [name, content] : vocabulary) {
    base::write_file_atomic(folder + "/" + name, content);
  }
}

}  // namespace trireme::text
