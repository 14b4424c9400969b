#include <charconv>
#include <filesystem>
#include <unordered_map>

#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/base/json.h"
#include "trireme/text/byte_alphabet.h"
#include "trireme/text/charsmap.h"
#include "trireme/text/companions.h"
#include "trireme/text/tokenizer_spec.h"
#include "trireme/text/word_patterns.h"

namespace trireme::text {
namespace {

using base::FormatError;
using base::Json;

// What a file of ranks leaves to the program that knows its name.
struct KnownRanks {
  std::string_view name;  // how the file's name begins
  const char* pattern;
  std::vector<std::pair<const char*, int32_t>> special;
};

const std::vector<KnownRanks>& encodings() {
  static const std::vector<KnownRanks> all = {
      {"r50k_base", kGpt2, {{"<|endoftext|>", 50256}}},
      {"p50k_base", kGpt2, {{"<|endoftext|>", 50256}}},
      {"cl100k_base",
       kCl100k,
       {{"<|endoftext|>", 100257},
        {"<|fim_prefix|>", 100258},
        {"<|fim_middle|>", 100259},
        {"<|fim_suffix|>", 100260},
        {"<|endofprompt|>", 100276}}},
      {"o200k_base", kO200k, {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}}},
      {"qwen",
       kQwen2,
       {{"<|endoftext|>", 151643}, {"<|im_start|>", 151644}, {"<|im_end|>", 151645}}},
      {"tokenizer.model", kCl100k, {}}};  // Llama 3's: see below
  return all;
}

// Llama 3's special tokens follow its tokens: 256, most of them reserved.
std::vector<std::string> llama_special() {
  std::vector<std::string> all = {"<|begin_of_text|>", "<|end_of_text|>"};
  int reserved = 0;
  auto reserve = [&](size_t size) {
    while (all.size() < size) all.push_back(fmt::format("<|reserved_special_token_{}|>", reserved++));
  };
  reserve(6);
  all.insert(all.end(), {"<|start_header_id|>", "<|end_header_id|>"});
  reserve(9);
  all.push_back("<|eot_id|>");
  reserve(256);
  return all;
}

using Ranks = std::unordered_map<std::string_view, int32_t>;

std::vector<std::string> read_tokens(const std::string& path) {
  const std::string content = base::read_file(path);
  std::vector<std::string> tokens;
  int64_t number = 0;
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    std::string_view line(content.data() + begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    auto fail = [&](const std::string& what) {
      throw FormatError(fmt::format("{}:{}: {}", path, number, what));
    };
    const size_t space = line.find(' ');
    int64_t rank = -1;
    if (space != std::string_view::npos) {
      const std::string_view digits = line.substr(space + 1);
      const auto [rest, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
      if (error != std::errc() || rest != digits.data() + digits.size()) rank = -1;
    }
    if (space == 0 || rank < 0) fail("expected a token in base64 and its rank");
    if (rank > number + (1 << 20)) fail(fmt::format("rank {} is out of range", rank));
    std::string token;
    try {
      token = decode_base64(line.substr(0, space));
    } catch (const FormatError& e) {
      fail(e.what());
    }
    if (token.empty()) fail("an empty token");
    if (rank >= static_cast<int64_t>(tokens.size())) tokens.resize(rank + 1);
    if (!tokens[rank].empty()) fail(fmt::format("rank {} is given twice", rank));
    tokens[rank] = std::move(token);
  }
  if (tokens.empty()) throw FormatError(fmt::format("{}: holds no tokens", path));
  return tokens;
}

// The two parts that a token is made of by merging with lower ranks only; {-1, -1} for a token that
// merging does not make.
std::pair<int32_t, int32_t> parts_of(std::string_view token, int32_t rank, const Ranks& ranks) {
  std::vector<size_t> cuts;
  for (size_t i = 0; i <= token.size(); ++i) cuts.push_back(i);
  auto rank_of = [&](size_t begin, size_t end) {
    const auto found = ranks.find(token.substr(begin, end - begin));
    return found == ranks.end() ? INT32_MAX : found->second;
  };
  while (cuts.size() > 3) {
    int32_t best = rank;
    size_t at = 0;
    for (size_t i = 0; i + 2 < cuts.size(); ++i) {
      const int32_t r = rank_of(cuts[i], cuts[i + 2]);
      if (r < best) best = r, at = i + 1;
    }
    if (best == rank) return {-1, -1};
    cuts.erase(cuts.begin() + static_cast<int64_t>(at));
  }
  const int32_t left = rank_of(cuts[0], cuts[1]), right = rank_of(cuts[1], cuts[2]);
  if (left == INT32_MAX || right == INT32_MAX) return {-1, -1};
  return {left, right};
}

}  // namespace

TokenizerSpec read_tiktoken_file(const std::string& path) {
  const std::string name = std::filesystem::path(path).filename().string();
  const KnownRanks* encoding = nullptr;
  for (const KnownRanks& known : encodings()) {
    if (name.starts_with(known.name)) encoding = &known;
  }
  if (!encoding) {
    throw FormatError(fmt::format(
        "{}: the name says which pattern cuts words and which special tokens there are; name the "
        "file r50k_base, p50k_base, cl100k_base, o200k_base or qwen, with the ending .tiktoken",
        path));
  }
  const std::vector<std::string> tokens = read_tokens(path);
  Ranks ranks;
  ranks.reserve(tokens.size());
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].empty()) continue;
    if (!ranks.emplace(tokens[id], static_cast<int32_t>(id)).second) {
      throw FormatError(fmt::format("{}: the tokens of ranks {} and {} are the same", path,
                                    ranks.at(tokens[id]), id));
    }
  }
  BpeSpec bpe;
  bpe.ignore_merges = true;  // a word that is a token is that token
  for (size_t id = 0; id < tokens.size(); ++id) {
    bpe.vocabulary.push_back(to_alphabet(tokens[id]));
    if (tokens[id].size() < 2) continue;
    const auto [left, right] = parts_of(tokens[id], static_cast<int32_t>(id), ranks);
    if (left >= 0) bpe.merges.push_back({left, right, static_cast<int32_t>(id)});
  }
  TokenizerSpec spec;
  spec.source = path;
  const bool llama = encoding->name == "tokenizer.model";
  std::vector<std::pair<std::string, int32_t>> special(encoding->special.begin(), encoding->special.end());
  if (llama) {
    const auto first = static_cast<int32_t>(tokens.size());
    for (const std::string& text : llama_special()) {
      special.emplace_back(text, first + static_cast<int32_t>(special.size()));
    }
  }
  for (const auto& [text, id] : special) {
    if (id < static_cast<int32_t>(bpe.vocabulary.size()) && !bpe.vocabulary[id].empty()) {
      throw FormatError(fmt::format("{}: rank {} is that of the special token {}", path, id, text));
    }
    if (id >= static_cast<int32_t>(bpe.vocabulary.size())) bpe.vocabulary.resize(id + 1);
    bpe.vocabulary[id] = text;
    spec.added.push_back({.id = id, .content = text, .special = true});
  }
  spec.model = std::move(bpe);
  const std::string byte_level =
      R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false})";
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", encoding->pattern}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  spec.pre_tokenizer =
      Json{{"type", "Sequence"}, {"pretokenizers", {split, Json::parse(byte_level)}}}.dump();
  spec.decoder = byte_level;
  if (llama) spec.settings["bos_token"] = "<|begin_of_text|>";
  spec.settings["model_input_names"] = {"input_ids", "attention_mask"};
  spec.end_of_document = spec.added[llama ? 1 : 0].id;
  Companions(path).describe(spec);
  return spec;
}

}  // namespace trireme::text
