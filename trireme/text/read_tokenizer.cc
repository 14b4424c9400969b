#include <algorithm>
#include <filesystem>
#include <limits>
#include <set>
#include <unordered_map>

#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/base/json.h"
#include "trireme/text/companions.h"
#include "trireme/text/json_node.h"
#include "trireme/text/read_vocabulary.h"
#include "trireme/text/roles.h"
#include "trireme/text/tokenizer_spec.h"

namespace trireme::text {
namespace {

namespace fs = std::filesystem;
using base::FormatError;
using base::Json;

template <class Fail>
std::pair<std::string_view, std::string_view> split_merge(std::string_view line, const Fail& fail) {
  const size_t space = line.find(' ');
  if (space == 0 || space == std::string_view::npos || space + 1 == line.size() ||
      line.find(' ', space + 1) != std::string_view::npos) {
    fail(fmt::format("\"{}\": expected two tokens with one space between them", line));
  }
  return {line.substr(0, space), line.substr(space + 1)};
}

// `fail(message)` throws with the place of the merge. The second token loses the prefix that marks
// it as lying inside a word.
template <class Fail>
MergeRule merge_rule(std::string_view left, std::string_view right, std::string_view prefix,
                     const TokenIds& ids, const Fail& fail) {
  auto id = [&](std::string_view token) {
    auto found = ids.find(token);
    if (found == ids.end()) {
      fail(fmt::format("merge of \"{}\" and \"{}\": token \"{}\" is not in the vocabulary", left,
                       right, token));
    }
    return found->second;
  };
  if (right.size() < prefix.size()) {
    fail(fmt::format("merge of \"{}\" and \"{}\": the second lacks the prefix \"{}\"", left, right,
                     prefix));
  }
  return {id(left), id(right),
          id(std::string(left) + std::string(right.substr(prefix.size())))};
}

BpeSpec read_bpe(const Node& model, TokenIds& ids) {
  BpeSpec spec;
  if (auto dropout = model.find("dropout")) {
    spec.dropout = dropout->number();
    if (!(spec.dropout >= 0 && spec.dropout <= 1))
      dropout->fail(fmt::format("dropout {}; expected 0 to 1", spec.dropout));
  }
  auto affix = [&](const char* key) {
    auto node = model.find(key);
    return node ? std::string(node->text()) : std::string();
  };
  spec.continuing_prefix = affix("continuing_subword_prefix");
  spec.word_suffix = affix("end_of_word_suffix");
  spec.byte_fallback = model.flag("byte_fallback", false);
  spec.ignore_merges = model.flag("ignore_merges", false);
  spec.fuse_unk = model.flag("fuse_unk", false);
  ids = read_vocabulary(model.at("vocab"), spec.vocabulary);
  if (auto unk = model.find("unk_token")) spec.unk_token = unk->text();
  for (const Node& merge : model.at("merges").items()) {
    auto fail = [&](const std::string& message) { merge.fail(message); };
    if (merge.is_text()) {
      auto [left, right] = split_merge(merge.text(), fail);
      spec.merges.push_back(merge_rule(left, right, spec.continuing_prefix, ids, fail));
    } else {
      auto pair = merge.items();
      if (pair.size() != 2) merge.fail("expected two tokens");
      spec.merges.push_back(
          merge_rule(pair[0].text(), pair[1].text(), spec.continuing_prefix, ids, fail));
    }
  }
  return spec;
}

UnigramSpec read_unigram(const Node& model, TokenIds& ids) {
  UnigramSpec spec;
  spec.byte_fallback = model.flag("byte_fallback", false);
  for (const Node& entry : model.at("vocab").items()) {
    const std::vector<Node> pair = entry.items();
    if (pair.size() != 2) entry.fail("expected a token and its score");
    const std::string_view token = pair[0].text();
    if (!ids.emplace(token, static_cast<int32_t>(spec.vocabulary.size())).second) {
      entry.fail(fmt::format("token \"{}\" appears twice", token));
    }
    spec.vocabulary.emplace_back(token);
    spec.scores.push_back(pair[1].number());
  }
  if (spec.vocabulary.empty()) model.at("vocab").fail("is empty");
  if (auto unk = model.find("unk_id")) {
    spec.unk = static_cast<int32_t>(
        unk->integer(0, static_cast<int64_t>(spec.vocabulary.size()) - 1));
  }
  return spec;
}

ModelSpec read_model(const Node& model, TokenIds& ids) {
  model.refuse_duplicate_keys();
  // Files from before the models had a type are recognised by what they hold.
  std::string type;
  if (auto given = model.find("type")) {
    type = given->text();
  } else {
    type = model.find("merges")                      ? "BPE"
           : model.find("continuing_subword_prefix") ? "WordPiece"
           : model.find("unk_token")                 ? "WordLevel"
                                                     : "Unigram";
  }
  if (type == "BPE") return read_bpe(model, ids);
  if (type == "Unigram") return read_unigram(model, ids);
  if (type == "WordPiece") {
    WordPieceSpec spec;
    ids = read_vocabulary(model.at("vocab"), spec.vocabulary);
    spec.unk_token = model.at("unk_token").text();
    spec.continuing_prefix = model.at("continuing_subword_prefix").text();
    spec.max_characters = model.at("max_input_chars_per_word").integer(0, INT64_MAX);
    return spec;
  }
  if (type == "WordLevel") {
    WordLevelSpec spec;
    ids = read_vocabulary(model.at("vocab"), spec.vocabulary);
    spec.unk_token = model.at("unk_token").text();
    return spec;
  }
  model.unsupported(fmt::format("model \"{}\"", type));
}

// Hugging Face's library gives an added token the id of the vocabulary, or else the next free one,
// whatever the file says; a file that says otherwise would mean different ids to different readers.
void read_added_tokens(const Node& list, const TokenIds& ids, std::vector<AddedToken>& added) {
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
    added.push_back(std::move(token));
  }
}

}  // namespace

// simdjson reads 50,000 tokens in a few milliseconds, but does not say where a syntax error is and
// refuses integers beyond 64 bits, which transformers writes for "no limit" (model_max_length); the
// slower parser does and takes them.
Node::Element parse_document(simdjson::dom::parser& parser, const std::string& content,
                             const std::string& file) {
  Node::Element document;
  if (parser.parse(content).get(document) == simdjson::SUCCESS) return document;
  const std::string plain = base::parse_json(content, file).dump();
  if (parser.parse(plain).get(document) == simdjson::SUCCESS) return document;
  throw FormatError(fmt::format("{}: not JSON that can be read", file));
}

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

TokenizerSpec read_tokenizer_json(const std::string& path) {
  const std::string content = base::read_file(path);
  simdjson::dom::parser parser;
  const Node document(path, "", parse_document(parser, content, path));
  document.refuse_duplicate_keys();
  if (auto version = document.at("version"); version.text() != "1.0") {
    version.unsupported(fmt::format("format version \"{}\"", version.text()));
  }
  TokenizerSpec spec;
  spec.source = path;
  TokenIds ids;
  spec.model = read_model(document.at("model"), ids);
  if (auto node = document.find("added_tokens")) read_added_tokens(*node, ids, spec.added);
  auto stage = [&](const char* key) {
    auto node = document.find(key);
    return node ? node->dump() : std::string();
  };
  spec.truncation = stage("truncation");
  spec.padding = stage("padding");
  spec.normalizer = stage("normalizer");
  spec.pre_tokenizer = stage("pre_tokenizer");
  spec.post_processor = stage("post_processor");
  spec.decoder = stage("decoder");
  Companions(path).describe(spec);
  return spec;
}

TokenizerSpec read_gpt2_files(const std::string& vocabulary_path, const std::string& merges_path) {
  const std::string content = base::read_file(vocabulary_path);
  simdjson::dom::parser parser;
  BpeSpec bpe;
  const TokenIds ids =
      read_vocabulary(Node(vocabulary_path, "", parse_document(parser, content, vocabulary_path)),
                      bpe.vocabulary);
  refuse_holes(vocabulary_path, bpe.vocabulary);
  const std::string merges = base::read_file(merges_path);
  int64_t number = 0;
  for (size_t begin = 0; begin < merges.size();) {
    const size_t end = std::min(merges.find('\n', begin), merges.size());
    std::string_view line(merges.data() + begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if ((number == 1 && line.starts_with("#version")) || (line.empty() && begin >= merges.size())) continue;
    auto fail = [&](const std::string& message) {
      throw FormatError(fmt::format("{}:{}: {}", merges_path, number, message));
    };
    auto [left, right] = split_merge(line, fail);
    bpe.merges.push_back(merge_rule(left, right, "", ids, fail));
  }
  const Companions beside(vocabulary_path, "GPT2Tokenizer");
  beside.check_class({"GPT2Tokenizer", "PreTrainedTokenizer", "RobertaTokenizer", "BartTokenizer",
                      "LEDTokenizer", "LongformerTokenizer"});
  const std::string& of = beside.tokenizer_class();
  const bool roberta = of != "GPT2Tokenizer" && of != "PreTrainedTokenizer";
  TokenizerSpec spec;
  spec.source = vocabulary_path;
  beside.add_tokens(bpe.vocabulary, spec.added);
  auto add_special = [&](const std::string& token) {
    for (const AddedToken& added : spec.added) {
      if (added.content == token) return added.id;
    }
    const auto id = ids.find(token);
    if (id == ids.end()) return -1;
    spec.added.push_back({.id = id->second, .content = token, .special = true});
    return id->second;
  };
  const bool prefix = beside.flag("add_prefix_space", false);
  auto byte_level = [](bool add_prefix_space, bool trim_offsets) {
    return Json{{"type", "ByteLevel"},
                {"add_prefix_space", add_prefix_space},
                {"trim_offsets", trim_offsets},
                {"use_regex", true}};
  };
  spec.pre_tokenizer = byte_level(prefix, true).dump();
  spec.decoder = byte_level(true, true).dump();
  if (roberta) {
    Json ends = {{"type", "RobertaProcessing"},
                 {"trim_offsets", beside.flag("trim_offsets", true)},
                 {"add_prefix_space", prefix}};
    auto end = [&](const char* key, const char* role, const char* otherwise) {
      const std::string token = beside.role(role, otherwise);
      const int32_t id = add_special(token);
      if (id < 0) {
        throw FormatError(
            fmt::format("{}: the {} \"{}\" is no token of it", vocabulary_path, role, token));
      }
      ends[key] = Json::array({token, id});
    };
    end("sep", "sep_token", "</s>");
    end("cls", "cls_token", "<s>");
    for (const char* token : {"<unk>", "<pad>", "<mask>"}) add_special(token);
    spec.post_processor = ends.dump();
  } else {
    add_special(std::string(kEndOfText));
    spec.post_processor = byte_level(true, false).dump();
  }
  std::sort(spec.added.begin(), spec.added.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  spec.model = std::move(bpe);
  beside.describe(spec);
  if (!roberta) beside.put_ends(spec);
  return spec;
}

}  // namespace trireme::text
