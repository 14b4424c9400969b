#include "trireme/text/companions.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "trireme/base/io.h"
#include "trireme/text/json_node.h"

namespace trireme::text {
namespace {

namespace fs = std::filesystem;
using base::FormatError;

constexpr const char* kRoles[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                  "pad_token", "cls_token", "mask_token"};
constexpr const char* kFlags[] = {"add_prefix_space", "trim_offsets", "do_lower_case",
                                  "tokenize_chinese_chars", "strip_accents"};

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

Companions::Companions(const std::string& vocabulary_file) : file_(vocabulary_file) {
  const fs::path folder = fs::path(vocabulary_file).parent_path();
  auto read_roles = [&](const Node& document) {
    for (const char* name : kRoles) {
      if (auto node = document.find(name)) roles_.emplace(name, read_token(*node, true));
    }
    for (const char* name : {"additional_special_tokens", "extra_special_tokens"}) {
      auto list = document.find(name);
      if (!list || list->is_object())
        continue;  // names of a model's own, tokens of added_tokens_decoder
      for (const Node& node : list->items()) special_.push_back(read_token(node, true).content);
    }
  };
  with_document(folder / "tokenizer_config.json", [&](const Node& document) {
    if (auto node = document.find("tokenizer_class")) class_ = node->text();
    if (class_.ends_with("Fast")) class_.resize(class_.size() - 4);
    for (const char* name : kFlags) {
      if (auto node = document.find(name)) flags_[name] = node->boolean();
    }
    read_roles(document);
    if (auto decoder = document.find("added_tokens_decoder")) {
      for (auto [id, value] : decoder->object()) {
        const Node node = decoder->at(id);
        added_.push_back(read_token(node, false));
        added_.back().id = read_id(node, id);
      }
    }
  });
  with_document(folder / "special_tokens_map.json", read_roles);
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
      "{}: its tokenizer_config.json names the class {}, which is not supported from this file "
      "(supported: {}); save it with save_pretrained of transformers and load tokenizer.json",
      file_, class_, fmt::join(known, ", ")));
}

std::string Companions::role(const std::string& name, const std::string& otherwise) const {
  const auto found = roles_.find(name);
  return found == roles_.end() ? otherwise : found->second.content;
}

bool Companions::flag(const std::string& name, bool otherwise) const {
  const auto found = flags_.find(name);
  return found == flags_.end() ? otherwise : found->second;
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
                       [&](const auto& role) { return role.second.content == content; });
  };
  for (AddedToken token : added_) {
    if (is_special(token.content)) {
      token.special = true;
      token.normalized = false;
    }
    add(std::move(token));
  }
  for (const char* name : kRoles) {
    if (const auto found = roles_.find(name); found != roles_.end()) add(found->second);
  }
  for (const std::string& content : special_) {
    add({.id = -1, .content = content, .special = true});
  }
}

}  // namespace trireme::text
