#include "trireme/text/companions.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "trireme/base/io.h"
#include "trireme/text/json_node.h"
#include "trireme/text/roles.h"

namespace trireme::text {
namespace {

namespace fs = std::filesystem;
using base::FormatError;

using base::Json;

constexpr const char* kFlags[] = {"add_prefix_space",       "trim_offsets",  "do_lower_case",
                                  "tokenize_chinese_chars", "strip_accents", "add_bos_token",
                                  "add_eos_token",          "keep_accents",  "legacy"};
// What tokenizer.json says itself, or what is of one folder or program only.
constexpr std::string_view kDropped[] = {"tokenizer_class",
                                         "added_tokens_decoder",
                                         "add_bos_token",
                                         "add_eos_token",
                                         "auto_map",
                                         "backend",
                                         "device_map",
                                         "files_loaded",
                                         "is_local",
                                         "local_files_only",
                                         "merges_file",
                                         "name_or_path",
                                         "slow_tokenizer_class",
                                         "special_tokens_map_file",
                                         "tokenizer_file",
                                         "vocab_file"};

// Calls `use` with the document, where there is such a file.
template <class Use>
void with_document(const fs::path& path, const Use& use) {
  if (!fs::exists(path)) return;
  const std::string file = path.string(), content = base::read_file(file);
  simdjson::dom::parser parser;
  use(Node(file, "", parse_document(parser, content, file)));
}

AddedToken read_token(const Node& node, bool special) {
  AddedToken token{.id = -1, .content = {}, .special = special};
  if (node.is_text()) {
    token.content = node.text();
  } else {
    token.content = node.at("content").text();
    token.lstrip = node.flag("lstrip", false);
    token.rstrip = node.flag("rstrip", false);
    token.single_word = node.flag("single_word", false);
    token.special = node.flag("special", special);
    token.normalized = node.flag("normalized", !token.special);
  }
  if (token.content.empty()) node.fail("a token without content");
  return token;
}

int32_t read_id(const Node& node, std::string_view text) {
  int32_t id = -1;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc() || rest != text.data() + text.size() || id < 0) {
    node.fail(fmt::format("\"{}\" is no token id", text));
  }
  return id;
}

}  // namespace

Companions::Companions(const std::string& vocabulary_file, std::string_view otherwise)
    : file_(vocabulary_file) {
  const fs::path folder = fs::path(vocabulary_file).parent_path();
  // Where both files say something, the first one that is read counts.
  auto read_settings = [&](const fs::path& path, const Node& document) {
    for (auto [key, value] : document.object()) {
      const std::string name(key);
      const auto node = document.find(key);
      const bool role = std::ranges::find(kRoles, name) != std::end(kRoles);
      if (role && node) roles_.emplace(name, Role{read_token(*node, true), path.string()});
      if (settings_.contains(name) || std::ranges::find(kDropped, key) != std::end(kDropped))
        continue;
      if (!node) {
        settings_[name] = nullptr;
      } else if (role) {
        settings_[name] = roles_.at(name).token.content;
      } else if ((name == "additional_special_tokens" || name == "extra_special_tokens") &&
                 !node->is_object()) {  // an object: names of a model's own
        settings_[name] = Json::array();
        for (const Node& item : node->items()) {
          special_.push_back(read_token(item, true).content);
          settings_[name].push_back(special_.back());
        }
      } else {
        settings_[name] = Json::parse(node->dump());
      }
    }
  };
  auto read_map = [&] {
    with_document(folder / "special_tokens_map.json", [&](const Node& document) {
      read_settings(folder / "special_tokens_map.json", document);
    });
  };
  with_document(folder / "tokenizer_config.json", [&](const Node& document) {
    if (auto node = document.find("tokenizer_class")) class_ = node->text();
    if (class_.ends_with("Fast")) class_.resize(class_.size() - 4);
    if (class_ == "TokenizersBackend") class_ = "PreTrainedTokenizer";  // its newer name
    for (const char* name : kFlags) {
      if (auto node = document.find(name)) flags_[name] = node->boolean();
    }
    if (auto node = document.find("extra_ids")) numbers_["extra_ids"] = node->integer(0, 1 << 20);
    // The map is older; files that list the added tokens say all themselves.
    if (!document.find("added_tokens_decoder")) read_map();
    read_settings(folder / "tokenizer_config.json", document);
    if (auto decoder = document.find("added_tokens_decoder")) {
      for (auto [id, value] : decoder->object()) {
        const Node node = decoder->at(id);
        added_.push_back(read_token(node, false));
        added_.back().id = read_id(node, id);
      }
    }
  });
  read_map();
  if (const fs::path path = folder / "chat_template.jinja"; fs::exists(path)) {
    settings_["chat_template"] = base::read_file(path.string());
  }
  if (const fs::path more = folder / "additional_chat_templates"; fs::is_directory(more)) {
    std::map<std::string, std::string> templates;
    if (settings_.contains("chat_template") && settings_["chat_template"].is_string()) {
      templates["default"] = settings_["chat_template"].get<std::string>();
    }
    for (const auto& entry : fs::directory_iterator(more)) {
      if (entry.path().extension() != ".jinja") continue;
      templates[entry.path().stem().string()] = base::read_file(entry.path().string());
    }
    Json& list = settings_["chat_template"] = Json::array();
    for (const auto& [name, text] : templates) {
      list.push_back({{"name", name}, {"template", text}});
    }
  }
  if (class_.empty()) class_ = otherwise;
  if (added_.empty()) {
    with_document(folder / "added_tokens.json", [&](const Node& document) {
      for (auto [content, value] : document.object()) {
        if (content.empty()) document.fail("a token without content");
        const Node node = document.at(content);
        added_.push_back({.id = static_cast<int32_t>(node.integer(0, INT32_MAX - 1)),
                          .content = std::string(content),
                          .normalized = true});
      }
    });
  }
  std::stable_sort(added_.begin(), added_.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
}

void Companions::check_class(std::initializer_list<std::string_view> known) const {
  if (class_.empty() || std::find(known.begin(), known.end(), class_) != known.end()) return;
  throw FormatError(fmt::format(
      "{}: the files beside it name the class {}, which is not supported from this file "
      "(supported: {}); save it with save_pretrained of transformers and load tokenizer.json",
      file_, class_, fmt::join(known, ", ")));
}

std::string Companions::role(const std::string& name, const std::string& otherwise) const {
  const auto found = roles_.find(name);
  return found == roles_.end() ? otherwise : found->second.token.content;
}

bool Companions::flag(const std::string& name, bool otherwise) const {
  const auto found = flags_.find(name);
  return found == flags_.end() ? otherwise : found->second;
}

std::optional<bool> Companions::flag(const std::string& name) const {
  const auto found = flags_.find(name);
  return found == flags_.end() ? std::nullopt : std::optional(found->second);
}

int64_t Companions::number(const std::string& name, int64_t otherwise) const {
  const auto found = numbers_.find(name);
  return found == numbers_.end() ? otherwise : found->second;
}

void Companions::add_tokens(std::span<const std::string> vocabulary,
                            std::vector<AddedToken>& added) const {
  auto next = static_cast<int32_t>(vocabulary.size());
  for (const AddedToken& token : added) next = std::max(next, token.id + 1);
  auto add = [&](AddedToken token) {
    for (const AddedToken& known : added) {
      if (known.content == token.content) return;
    }
    const auto known = std::find(vocabulary.begin(), vocabulary.end(), token.content);
    const int32_t id =
        known != vocabulary.end() ? static_cast<int32_t>(known - vocabulary.begin()) : next;
    if (token.id >= 0 && token.id != id) {
      throw FormatError(fmt::format(
          "{}: token \"{}\" has id {} in the files beside it, but {} {}", file_, token.content,
          token.id, known != vocabulary.end() ? "the vocabulary says" : "the next free id is", id));
    }
    token.id = id;
    next = std::max(next, id + 1);
    added.push_back(std::move(token));
  };
  auto is_special = [&](const std::string& content) {
    return std::find(special_.begin(), special_.end(), content) != special_.end() ||
           std::any_of(roles_.begin(), roles_.end(),
                       [&](const auto& role) { return role.second.token.content == content; });
  };
  for (AddedToken token : added_) {
    if (is_special(token.content)) {
      token.special = true;
      token.normalized = false;
    }
    add(std::move(token));
  }
  for (const char* name : kRoles) {
    if (const auto found = roles_.find(name); found != roles_.end()) add(found->second.token);
  }
  for (const std::string& content : special_) {
    add({.id = -1, .content = content, .special = true});
  }
}

void Companions::refuse(const std::string& name, const std::string& what) const {
  const auto found = roles_.find(name);
  throw FormatError(
      fmt::format("{}: {}: {}", found == roles_.end() ? file_ : found->second.file, name, what));
}

void Companions::describe(TokenizerSpec& spec) const {
  if (const ClassDefaults* presumed = defaults_of(class_)) {
    for (const auto& [name, token] : presumed->roles) {
      if (id_of(spec, token)) spec.settings[name] = token;
    }
    if (presumed->pads_left) spec.settings["padding_side"] = "left";
    spec.settings["model_input_names"] = presumed->inputs();
  }
  for (const auto& [name, value] : settings_.items()) {
    if (value.is_null()) {
      spec.settings.erase(name);
    } else {
      spec.settings[name] = value;
    }
  }
  if (spec.settings.contains("eos_token")) {
    const auto text = spec.settings["eos_token"].get<std::string>();
    spec.end_of_document = id_of(spec, text);
    if (!spec.end_of_document) {
      refuse("eos_token", fmt::format("\"{}\" is not a token of {}", text, file_));
    }
  } else if (!spec.end_of_document) {
    spec.end_of_document = id_of(spec, "<|endoftext|>");
  }
}

void Companions::put_ends(TokenizerSpec& spec) const {
  if (!flags_.contains("add_bos_token") && !flags_.contains("add_eos_token")) return;
  auto token = [&](const char* flag_name, const char* name) -> std::string {
    if (!flag(flag_name, false) || !spec.settings.contains(name)) return "";
    auto text = spec.settings[name].get<std::string>();
    if (!id_of(spec, text)) refuse(name, fmt::format("\"{}\" is not a token of {}", text, file_));
    return text;
  };
  const std::string before = token("add_bos_token", "bos_token"),
                    after = token("add_eos_token", "eos_token");
  if (!before.empty() || !after.empty()) put_around(spec, before, after);
}

}  // namespace trireme::text
