#include <simdjson.h>

#include <filesystem>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/base/json.h"
#include "trireme/text/tokenizer_files.h"

namespace trireme::text {
namespace {

namespace fs = std::filesystem;
using base::ConfigError;
using base::FormatError;
using simdjson::dom::element;
using simdjson::dom::element_type;

constexpr std::string_view kEndOfText = "<|endoftext|>";

// A value of the document with the path that leads to it, so that every complaint names its place.
class Node {
 public:
  Node(const std::string& file, std::string place, element value)
      : file_(file), place_(std::move(place)), value_(value) {}

  [[noreturn]] void fail(const std::string& message) const {
    throw FormatError(
        fmt::format("{}: {}: {}", file_, place_.empty() ? "document" : place_, message));
  }
  [[noreturn]] void unsupported(const std::string& what) const {
    throw ConfigError(
        fmt::format("{}: {}: {} is not supported; byte-level BPE tokenizers (GPT-2's kind) are",
                    file_, place_.empty() ? "document" : place_, what));
  }
  bool null() const { return value_.is_null(); }
  /// The member of an object; null where it is absent.
  std::optional<Node> find(std::string_view key) const {
    element member;
    if (object().at_key(key).get(member) != simdjson::SUCCESS || member.is_null())
      return std::nullopt;
    return Node(file_, place_.empty() ? std::string(key) : fmt::format("{}.{}", place_, key),
                member);
  }
  Node at(std::string_view key) const {
    if (auto member = find(key)) return *member;
    fail(fmt::format("\"{}\" is missing", key));
  }
  simdjson::dom::object object() const { return get<simdjson::dom::object>("an object"); }
  std::string_view text() const { return get<std::string_view>("a string"); }
  int64_t integer() const { return get<int64_t>("an integer"); }
  bool boolean() const { return get<bool>("true or false"); }
  bool is_text() const { return value_.is_string(); }
  std::vector<Node> items() const {
    std::vector<Node> nodes;
    for (element item : get<simdjson::dom::array>("a list")) {
      nodes.emplace_back(file_, fmt::format("{}[{}]", place_, nodes.size()), item);
    }
    return nodes;
  }
  bool flag(std::string_view key, bool otherwise) const {
    auto member = find(key);
    return member ? member->boolean() : otherwise;
  }
  std::string_view type() const { return at("type").text(); }
  /// Duplicate keys would leave it open which value counts.
  void refuse_duplicate_keys() const {
    std::set<std::string_view> keys;
    for (auto [key, value] : object()) {
      if (!keys.insert(key).second) fail(fmt::format("key \"{}\" appears twice", key));
    }
  }

 private:
  template <class T>
  T get(const char* expected) const {
    T result;
    if (value_.get(result) != simdjson::SUCCESS) fail(fmt::format("expected {}", expected));
    return result;
  }
  const std::string& file_;
  std::string place_;
  element value_;
};

// simdjson reads 50,000 tokens in a few milliseconds, but does not say where a syntax error is and refuses integers
// beyond 64 bits, which transformers writes for "no limit" (model_max_length); the slower parser does and takes them.
element parse(simdjson::dom::parser& parser, const std::string& content, const std::string& path) {
  element document;
  if (parser.parse(content).get(document) == simdjson::SUCCESS) return document;
  const std::string plain = base::parse_json(content, path).dump();
  if (parser.parse(plain).get(document) == simdjson::SUCCESS) return document;
  throw FormatError(fmt::format("{}: not JSON that can be read", path));
}

using TokenIds = std::unordered_map<std::string_view, int32_t>;

// {"token": id, ...} to tokens by id; an id that no token has stays empty.
TokenIds read_vocabulary(const Node& node, std::vector<std::string>& vocabulary) {
  const auto max_id = static_cast<int64_t>(node.object().size()) +
                      (1 << 20);  // bounds the memory of a damaged file
  TokenIds ids;
  ids.reserve(node.object().size());
  for (auto [token, value] : node.object()) {
    int64_t id = -1;
    if (value.get(id) != simdjson::SUCCESS || id < 0 || id > max_id) {
      node.fail(fmt::format("token \"{}\": expected an id from 0 to {}", token, max_id));
    }
    if (token.empty()) node.fail(fmt::format("id {} is an empty token", id));
    if (!ids.emplace(token, static_cast<int32_t>(id)).second) {
      node.fail(fmt::format("token \"{}\" appears twice", token));
    }
    if (id >= static_cast<int64_t>(vocabulary.size())) vocabulary.resize(id + 1);
    if (!vocabulary[id].empty()) {
      node.fail(
          fmt::format("tokens \"{}\" and \"{}\" have the same id {}", vocabulary[id], token, id));
    }
    vocabulary[id] = token;
  }
  return ids;
}

void refuse_holes(const std::string& path, const std::vector<std::string>& vocabulary) {
  for (size_t id = 0; id < vocabulary.size(); ++id) {
    if (!vocabulary[id].empty()) continue;
    throw FormatError(
        fmt::format("{}: no token of the vocabulary has id {}, though its ids go up to {}", path,
                    id, vocabulary.size() - 1));
  }
}

// `fail(message)` throws with the place of the merge.
template <class Fail>
MergeRule merge_rule(std::string_view left, std::string_view right, const TokenIds& ids,
                     const Fail& fail) {
  auto id = [&](std::string_view token) {
    auto found = ids.find(token);
    if (found == ids.end()) {
      fail(fmt::format("merge of \"{}\" and \"{}\": token \"{}\" is not in the vocabulary", left,
                       right, token));
    }
    return found->second;
  };
  return {id(left), id(right), id(std::string(left) + std::string(right))};
}

template <class Fail>
std::pair<std::string_view, std::string_view> split_merge(std::string_view line, const Fail& fail) {
  const size_t space = line.find(' ');
  if (space == 0 || space == std::string_view::npos || space + 1 == line.size() ||
      line.find(' ', space + 1) != std::string_view::npos) {
    fail(fmt::format("\"{}\": expected two tokens with one space between them", line));
  }
  return {line.substr(0, space), line.substr(space + 1)};
}

void read_model(const Node& model, ByteLevelSpec& spec, TokenIds& ids) {
  model.refuse_duplicate_keys();
  // Files from before the models had a type are BPE when they hold merges.
  if (auto type = model.find("type"); type ? type->text() != "BPE" : !model.find("merges")) {
    model.unsupported(fmt::format("model \"{}\"", type ? type->text() : "without a type"));
  }
  if (model.find("dropout")) model.at("dropout").unsupported("dropout");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    auto affix = model.find(key);
    if (affix && !affix->text().empty()) affix->unsupported(key);
  }
  if (model.flag("byte_fallback", false)) model.at("byte_fallback").unsupported("byte_fallback");
  spec.ignore_merges = model.flag("ignore_merges", false);
  spec.fuse_unk = model.flag("fuse_unk", false);
  ids = read_vocabulary(model.at("vocab"), spec.vocabulary);
  if (auto unk = model.find("unk_token")) {
    if (!ids.contains(unk->text()))
      unk->fail(fmt::format("\"{}\" is not in the vocabulary", unk->text()));
    spec.unk_token = unk->text();
  }
  for (const Node& merge : model.at("merges").items()) {
    auto fail = [&](const std::string& message) { merge.fail(message); };
    if (merge.is_text()) {
      auto [left, right] = split_merge(merge.text(), fail);
      spec.merges.push_back(merge_rule(left, right, ids, fail));
    } else {
      auto pair = merge.items();
      if (pair.size() != 2) merge.fail("expected two tokens");
      spec.merges.push_back(merge_rule(pair[0].text(), pair[1].text(), ids, fail));
    }
  }
}

// Hugging Face's library gives an added token the id of the vocabulary, or else the next free one,
// whatever the file says; a file that says otherwise would mean different ids to different readers.
void read_added_tokens(const Node& list, const TokenIds& ids, ByteLevelSpec& spec) {
  std::set<std::string_view> seen;
  const auto size = static_cast<int64_t>(ids.size());
  int64_t next = size;
  for (const Node& node : list.items()) {
    AddedToken token;
    token.content = node.at("content").text();
    if (token.content.empty()) node.fail("an added token without content");
    if (!seen.insert(node.at("content").text()).second) {
      node.fail(fmt::format("token \"{}\" is added twice", token.content));
    }
    const int64_t id = node.at("id").integer();
    auto known = ids.find(token.content);
    const int64_t expected = known != ids.end() ? known->second : next;
    if (id != expected) {
      node.at("id").fail(fmt::format(
          "token \"{}\" has id {} here, but {} {}", token.content, id,
          known != ids.end() ? "the vocabulary says" : "the next free id is", expected));
    }
    next = std::max(next, id + 1);
    token.id = static_cast<int32_t>(id);
    token.single_word = node.flag("single_word", false);
    token.lstrip = node.flag("lstrip", false);
    token.rstrip = node.flag("rstrip", false);
    token.special = node.flag("special", false);
    token.normalized = node.flag("normalized", !token.special);
    spec.added.push_back(std::move(token));
  }
}

void read_pre_tokenizer(const Node& node, ByteLevelSpec& spec) {
  if (node.type() == "Sequence" && node.at("pretokenizers").items().size() == 1) {
    return read_pre_tokenizer(node.at("pretokenizers").items()[0], spec);
  }
  if (node.type() != "ByteLevel")
    node.unsupported(fmt::format("pre-tokenizer \"{}\"", node.type()));
  spec.add_prefix_space = node.at("add_prefix_space").boolean();
  spec.use_regex = node.flag("use_regex", true);
}

int32_t special_id(const Node& place, int64_t id, const ByteLevelSpec& spec) {
  auto size = static_cast<int64_t>(spec.vocabulary.size());
  for (const AddedToken& token : spec.added) size = std::max<int64_t>(size, token.id + 1);
  if (id < 0 || id >= size)
    place.fail(fmt::format("id {} is outside the vocabulary of {}", id, size));
  return static_cast<int32_t>(id);
}

void read_template(const Node& node, ByteLevelSpec& spec) {
  bool text_seen = false;
  for (const Node& piece : node.at("single").items()) {
    if (piece.find("Sequence")) {
      text_seen = true;
      continue;
    }
    const std::string_view name = piece.at("SpecialToken").at("id").text();
    for (const Node& id : node.at("special_tokens").at(name).at("ids").items()) {
      (text_seen ? spec.after : spec.before).push_back(special_id(id, id.integer(), spec));
    }
  }
}

void read_post_processor(const Node& node, ByteLevelSpec& spec) {
  const std::string_view type = node.type();
  if (type == "Sequence") {
    for (const Node& step : node.at("processors").items()) read_post_processor(step, spec);
  } else if (type == "ByteLevel") {
    spec.trim_offsets = node.at("trim_offsets").boolean();
    spec.trim_keeps_prefix = node.at("add_prefix_space").boolean();
  } else if (type == "TemplateProcessing") {
    read_template(node, spec);
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    auto id = [&](const char* key) {
      auto pair = node.at(key).items();
      if (pair.size() != 2) node.at(key).fail("expected a token and its id");
      return special_id(pair[1], pair[1].integer(), spec);
    };
    spec.before.push_back(id("cls"));
    spec.after.push_back(id("sep"));
    if (type == "RobertaProcessing") {
      spec.trim_offsets = node.flag("trim_offsets", true);
      spec.trim_keeps_prefix = node.flag("add_prefix_space", true);
    }
  } else {
    node.unsupported(fmt::format("post-processor \"{}\"", type));
  }
}

void find_end_of_document(const std::string& path, const TokenIds& ids, ByteLevelSpec& spec) {
  auto id_of = [&](std::string_view token) -> std::optional<int32_t> {
    for (const AddedToken& added : spec.added) {
      if (added.content == token) return added.id;
    }
    auto found = ids.find(token);
    if (found == ids.end()) return std::nullopt;
    return found->second;
  };
  const fs::path config = fs::path(path).parent_path() / "tokenizer_config.json";
  if (fs::exists(config)) {
    const std::string file = config.string(), content = base::read_file(file);
    simdjson::dom::parser parser;
    Node document(file, "", parse(parser, content, file));
    if (auto eos = document.find("eos_token")) {
      const std::string_view token = eos->is_text() ? eos->text() : eos->at("content").text();
      spec.end_of_document = id_of(token);
      if (!spec.end_of_document) eos->fail(fmt::format("\"{}\" is not a token of {}", token, path));
      return;
    }
  }
  spec.end_of_document = id_of(kEndOfText);
}

}  // namespace

ByteLevelSpec read_tokenizer_json(const std::string& path) {
  const std::string content = base::read_file(path);
  simdjson::dom::parser parser;
  const Node document(path, "", parse(parser, content, path));
  document.refuse_duplicate_keys();
  if (auto version = document.at("version"); version.text() != "1.0") {
    version.unsupported(fmt::format("format version \"{}\"", version.text()));
  }
  for (const char* key : {"truncation", "padding"}) {
    if (auto node = document.find(key))
      node->unsupported(fmt::format("{} inside a tokenizer", key));
  }
  if (auto node = document.find("normalizer")) {
    node->unsupported(fmt::format("normalizer \"{}\"", node->type()));
  }
  ByteLevelSpec spec;
  TokenIds ids;
  read_model(document.at("model"), spec, ids);
  if (auto node = document.find("added_tokens")) read_added_tokens(*node, ids, spec);
  refuse_holes(path, spec.vocabulary);
  if (!document.find("pre_tokenizer"))
    document.unsupported("a tokenizer without a byte-level pre-tokenizer");
  read_pre_tokenizer(document.at("pre_tokenizer"), spec);
  if (auto node = document.find("post_processor")) read_post_processor(*node, spec);
  if (auto node = document.find("decoder"); node && node->type() != "ByteLevel") {
    node->unsupported(fmt::format("decoder \"{}\"", node->type()));
  }
  find_end_of_document(path, ids, spec);
  return spec;
}

ByteLevelSpec read_gpt2_files(const std::string& vocabulary_path, const std::string& merges_path) {
  const std::string content = base::read_file(vocabulary_path);
  simdjson::dom::parser parser;
  ByteLevelSpec spec;
  const TokenIds ids = read_vocabulary(
      Node(vocabulary_path, "", parse(parser, content, vocabulary_path)), spec.vocabulary);
  refuse_holes(vocabulary_path, spec.vocabulary);
  const std::string merges = base::read_file(merges_path);
  int64_t number = 0;
  for (size_t begin = 0; begin < merges.size();) {
    const size_t end = std::min(merges.find('\n', begin), merges.size());
    std::string_view line(merges.data() + begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.starts_with("#version") || (line.empty() && begin >= merges.size())) continue;
    auto fail = [&](const std::string& message) {
      throw FormatError(fmt::format("{}:{}: {}", merges_path, number, message));
    };
    auto [left, right] = split_merge(line, fail);
    spec.merges.push_back(merge_rule(left, right, ids, fail));
  }
  if (auto end = ids.find(kEndOfText); end != ids.end()) {
    spec.added.push_back({.id = end->second, .content = std::string(kEndOfText), .special = true});
  }
  find_end_of_document(vocabulary_path, ids, spec);
  return spec;
}

std::unique_ptr<Tokenizer> Tokenizer::load(const std::string& path) {
  auto make = [](ByteLevelSpec spec) {
    return std::make_unique<ByteLevelTokenizer>(std::move(spec));
  };
  auto beside = [](const fs::path& folder,
                   std::initializer_list<const char*> names) -> std::string {
    for (const char* name : names) {
      if (fs::exists(folder / name)) return (folder / name).string();
    }
    return "";
  };
  const bool is_folder = fs::is_directory(path);
  const fs::path folder = is_folder ? fs::path(path) : fs::path(path).parent_path();
  std::string vocabulary = beside(folder, {"vocab.json", "encoder.json"});
  std::string merges = beside(folder, {"merges.txt", "vocab.bpe"});
  if (is_folder) {
    if (auto file = beside(folder, {"tokenizer.json"}); !file.empty())
      return make(read_tokenizer_json(file));
  } else {
    const std::string name = fs::path(path).filename().string();
    if (name == "merges.txt" || name == "vocab.bpe") {
      merges = path;
    } else if (name == "vocab.json" || name == "encoder.json") {
      vocabulary = path;
    } else {
      return make(read_tokenizer_json(path));
    }
  }
  if (!vocabulary.empty() && !merges.empty()) return make(read_gpt2_files(vocabulary, merges));
  throw FormatError(fmt::format(
      "{}: no tokenizer here: expected {}; found {}", path,
      is_folder ? "tokenizer.json, or vocab.json (encoder.json) with merges.txt (vocab.bpe)"
                : "vocab.json (encoder.json) and merges.txt (vocab.bpe) side by side",
      vocabulary.empty() && merges.empty() ? "none of them"
      : vocabulary.empty()                 ? merges
                                           : vocabulary));
}

}  // namespace trireme::text
