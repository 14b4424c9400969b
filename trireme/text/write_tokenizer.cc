#include <filesystem>

#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/base/json.h"
#include "trireme/text/tokenizer_files.h"

namespace trireme::text {
namespace {

using base::Json;

// Appends a member without looking for its key, which makes a vocabulary of any size linear to
// build.
void append_member(Json& object, const std::string& key, Json value) {
  using Members = Json::object_t::Container;
  static_cast<Members&>(object.get_ref<Json::object_t&>()).emplace_back(key, std::move(value));
}

Json byte_level(bool add_prefix_space, bool trim_offsets, bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", trim_offsets},
          {"use_regex", use_regex}};
}

Json sequence(const char* id, int type) {
  return {{"Sequence", {{"id", id}, {"type_id", type}}}};
}

Json special_template(const ByteLevelSpec& spec, const std::vector<std::string>& texts) {
  Json before = Json::array(), after = Json::array(), tokens = Json::object();
  auto add = [&](const std::vector<int32_t>& ids, Json& pieces) {
    for (int32_t id : ids) {
      const std::string& text = texts[id];
      pieces.push_back({{"SpecialToken", {{"id", text}, {"type_id", 0}}}});
      tokens[text] = {{"id", text}, {"ids", {id}}, {"tokens", {text}}};
    }
  };
  add(spec.before, before);
  add(spec.after, after);
  auto around = [&](Json pieces, const char* id, int type) {
    pieces.push_back(sequence(id, type));
    for (const Json& piece : after) pieces.push_back(piece);
    return pieces;
  };
  Json single = around(before, "A", 0), pair = around(single, "B", 1);
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", pair},
          {"special_tokens", tokens}};
}

Json tokenizer_json(const ByteLevelSpec& spec) {
  std::vector<std::string> texts = spec.vocabulary;
  Json added = Json::array();
  for (const AddedToken& token : spec.added) {
    if (token.id >= static_cast<int32_t>(texts.size())) texts.resize(token.id + 1);
    texts[token.id] = token.content;
    added.push_back({{"id", token.id},
                     {"content", token.content},
                     {"single_word", token.single_word},
                     {"lstrip", token.lstrip},
                     {"rstrip", token.rstrip},
                     {"normalized", token.normalized},
                     {"special", token.special}});
  }
  Json post = byte_level(spec.trim_keeps_prefix, spec.trim_offsets, true);
  if (!spec.before.empty() || !spec.after.empty()) {
    post = {{"type", "Sequence"}, {"processors", {post, special_template(spec, texts)}}};
  }
  Json vocabulary = Json::object(), merges = Json::array();
  for (size_t id = 0; id < spec.vocabulary.size(); ++id) {
    if (!spec.vocabulary[id].empty()) append_member(vocabulary, spec.vocabulary[id], id);
  }
  for (const MergeRule& merge : spec.merges) {
    merges.push_back(Json::array({spec.vocabulary[merge.left], spec.vocabulary[merge.right]}));
  }
  Json model = {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", spec.unk_token ? Json(*spec.unk_token) : Json()},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", spec.fuse_unk},
                {"byte_fallback", false},
                {"ignore_merges", spec.ignore_merges}};
  append_member(model, "vocab", std::move(vocabulary));
  append_member(model, "merges", std::move(merges));
  Json document = {{"version", "1.0"},
                   {"truncation", nullptr},
                   {"padding", nullptr},
                   {"added_tokens", added},
                   {"normalizer", nullptr},
                   {"pre_tokenizer", byte_level(spec.add_prefix_space, true, spec.use_regex)},
                   {"post_processor", post},
                   {"decoder", byte_level(true, true, true)}};
  append_member(document, "model", std::move(model));
  return document;
}

Json config_json(const ByteLevelSpec& spec) {
  Json config = {{"add_prefix_space", spec.add_prefix_space},
                 {"clean_up_tokenization_spaces", false},
                 {"tokenizer_class", "PreTrainedTokenizerFast"}};
  if (spec.end_of_document) {
    const int32_t id = *spec.end_of_document;
    std::string text = id < static_cast<int32_t>(spec.vocabulary.size()) ? spec.vocabulary[id] : "";
    for (const AddedToken& token : spec.added) {
      if (token.id == id) text = token.content;
    }
    for (const char* role : {"bos_token", "eos_token", "unk_token"}) config[role] = text;
  }
  return config;
}

}  // namespace

void write_tokenizer_files(const ByteLevelSpec& spec, const std::string& folder) {
  base::write_file_atomic(folder + "/tokenizer.json", tokenizer_json(spec).dump(2));
  base::write_file_atomic(folder + "/tokenizer_config.json", config_json(spec).dump(2) + "\n");
}

void ByteLevelTokenizer::save(const std::string& folder) const {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw base::IoError(folder, error.value(), "creating the folder");
  write_tokenizer_files(spec_, folder);
}

}  // namespace trireme::text
