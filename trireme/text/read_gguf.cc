#include <unordered_map>

#include "trireme/base/error.h"
#include "trireme/text/roles.h"
#include "trireme/text/sentencepiece_model.h"
#include "trireme/text/word_patterns.h"

namespace trireme::text {
namespace {

using base::FormatError;
using base::Json;

// How `tokenizer.ggml.pre` cuts words.
struct WordRule {
  const char* name;
  const char* pattern;
  bool ignore_merges = false, composes = false;  // a word that is a token is that token; NFC first
};
constexpr WordRule kWordRules[] = {{"gpt-2", kGpt2},         {"default", kGpt2},
                                   {"llama-bpe", kCl100k, true}, {"llama3", kCl100k, true},
                                   {"qwen2", kQwen2, false, true}};

class Metadata {
 public:
  Metadata(const Json& json, const std::string& source) : json_(json), source_(source) {}
  [[noreturn]] void fail(const std::string& what) const { throw FormatError(fmt::format("{}: {}", source_, what)); }

  template <class T>
  T get(const std::string& key, T otherwise) const {
    const auto found = json_.find("tokenizer.ggml." + key);
    if (found == json_.end()) return otherwise;
    try {
      return found->get<T>();
    } catch (const Json::exception&) {
      fail(fmt::format("tokenizer.ggml.{} has another type than expected", key));
    }
  }
  template <class T>
  std::vector<T> list(const std::string& key, size_t size) const {
    auto values = get<std::vector<T>>(key, {});
    if (values.size() != size) fail(fmt::format("tokenizer.ggml.{} has {} values, expected {}", key, values.size(), size));
    return values;
  }

 private:
  const Json& json_;
  const std::string& source_;
};

std::string split_by(const char* pattern, const std::string& byte_level) {
  const Json split = {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  return Json{{"type", "Sequence"}, {"pretokenizers", {split, Json::parse(byte_level)}}}.dump();
}

TokenizerSpec byte_level(const Metadata& given, const std::vector<std::string>& tokens, const std::vector<int>& types) {
  const auto name = given.get<std::string>("pre", "default");
  const WordRule* rule = nullptr;
  for (const WordRule& known : kWordRules)
    if (name == known.name) rule = &known;
  if (!rule)
    given.fail(fmt::format("tokenizer.ggml.pre \"{}\" is not supported; known are gpt-2, default, llama-bpe, llama3 and "
                           "qwen2: take the tokenizer from the original model",
                           name));
  BpeSpec bpe;
  bpe.vocabulary = tokens;
  bpe.ignore_merges = rule->ignore_merges;
  std::unordered_map<std::string_view, int32_t> ids;
  for (size_t id = 0; id < tokens.size(); ++id) ids.emplace(tokens[id], static_cast<int32_t>(id));
  for (const std::string& merge : given.get<std::vector<std::string>>("merges", {})) {
    const size_t space = merge.find(' ', 1);
    const std::string_view whole = merge;
    const auto left = ids.find(whole.substr(0, space));
    const auto right = space == std::string::npos ? ids.end() : ids.find(whole.substr(space + 1));
    if (left == ids.end() || right == ids.end())
      given.fail(fmt::format("the merge \"{}\" is not of two tokens", merge));
    const auto made = ids.find(std::string(left->first) + std::string(right->first));
    if (made == ids.end()) given.fail(fmt::format("what the merge \"{}\" makes is no token", merge));
    bpe.merges.push_back({left->second, right->second, made->second});
  }
  TokenizerSpec spec;
  spec.model = std::move(bpe);
  const std::string bytes = R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false})";
  spec.pre_tokenizer = split_by(rule->pattern, bytes);
  spec.decoder = bytes;
  if (rule->composes) spec.normalizer = R"({"type":"NFC"})";
  for (size_t id = 0; id < tokens.size(); ++id)
    if (types[id] == kControl || types[id] == kUserDefined)
      spec.added.push_back({.id = static_cast<int32_t>(id), .content = tokens[id], .special = types[id] == kControl});
  return spec;
}

}  // namespace

TokenizerSpec read_gguf_tokenizer(const Json& metadata, const std::string& source) {
  const Metadata given(metadata, source);
  const auto kind = given.get<std::string>("model", "");
  const auto tokens = given.get<std::vector<std::string>>("tokens", {});
  if (tokens.empty()) given.fail("it carries no tokenizer (tokenizer.ggml.tokens)");
  const auto types = given.list<int>("token_type", tokens.size());
  TokenizerSpec spec;
  if (kind == "gpt2") {
    spec = byte_level(given, tokens, types);
  } else if (kind == "llama") {
    const auto scores = given.list<double>("scores", tokens.size());
    SentencePieceModel model;
    for (size_t id = 0; id < tokens.size(); ++id) model.pieces.push_back({tokens[id], scores[id], types[id]});
    model.model_type = kBpe;
    model.bos = model.eos = -1;  // said below
    model.byte_fallback = true;
    model.remove_extra_whitespaces = given.get("remove_extra_whitespaces", false);
    model.dummy_prefix = given.get("add_space_prefix", true);
    spec = tokenizer_of(model, source);
  } else {
    given.fail(fmt::format("tokenizer.ggml.model \"{}\" is not supported; known are gpt2 and llama", kind));
  }
  spec.source = source;
  const auto token = [&](const char* key) {
    const auto id = given.get<int64_t>(key, -1);
    if (id >= static_cast<int64_t>(tokens.size())) given.fail(fmt::format("tokenizer.ggml.{} {} is no token", key, id));
    return id;
  };
  constexpr std::pair<const char*, const char*> kIds[] = {
      {"bos_token", "bos_token_id"},       {"eos_token", "eos_token_id"},
      {"unk_token", "unknown_token_id"},   {"sep_token", "seperator_token_id"},  // the format's own spelling
      {"sep_token", "separator_token_id"}, {"pad_token", "padding_token_id"},
      {"cls_token", "cls_token_id"},       {"mask_token", "mask_token_id"}};
  spec.settings = {{"model_input_names", {"input_ids", "attention_mask"}}};
  for (const auto& [role, key] : kIds) {
    if (const int64_t id = token(key); id >= 0) spec.settings[role] = tokens[static_cast<size_t>(id)];
  }
  if (const auto chat = given.get<std::string>("chat_template", ""); !chat.empty()) {
    spec.settings["chat_template"] = chat;
  }
  if (const int64_t end = token("eos_token_id"); end >= 0) spec.end_of_document = static_cast<int32_t>(end);
  // Text begins with the first token where the file says so, and where it says nothing and is SentencePiece's.
  auto around = [&](const char* role, const char* flag, bool otherwise) {
    return spec.settings.contains(role) && given.get(flag, otherwise) ? spec.settings[role].get<std::string>() : "";
  };
  const std::string before = around("bos_token", "add_bos_token", kind == "llama"),
                    after = around("eos_token", "add_eos_token", false);
  if (!before.empty() || !after.empty()) put_around(spec, before, after);
  return spec;
}

}  // namespace trireme::text
