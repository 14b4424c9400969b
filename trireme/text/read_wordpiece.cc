#include <algorithm>
#include <unordered_set>

#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/base/json.h"
#include "trireme/text/companions.h"
#include "trireme/text/roles.h"
#include "trireme/text/tokenizer_spec.h"

namespace trireme::text {
namespace {

using base::FormatError;
using base::Json;

// The tokens of vocab.txt by line; whitespace at the ends of a line is no part of a token.
std::vector<std::string> read_lines(const std::string& path) {
  const std::string content = base::read_file(path);
  std::vector<std::string> tokens;
  std::unordered_set<std::string_view> seen;
  tokens.reserve(std::count(content.begin(), content.end(), '\n') + 1);
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    std::string_view line(content.data() + begin, end - begin);
    begin = end + 1;
    while (line.ends_with('\r') || line.ends_with(' ') || line.ends_with('\t')) {
      line.remove_suffix(1);
    }
    tokens.emplace_back(line);
    if (line.empty()) {
      throw FormatError(fmt::format("{}:{}: an empty token", path, tokens.size()));
    }
    if (!seen.insert(line).second) {
      throw FormatError(fmt::format("{}:{}: token \"{}\" appears twice", path, tokens.size(), line));
    }
  }
  if (tokens.empty()) throw FormatError(fmt::format("{}: holds no tokens", path));
  return tokens;
}

}  // namespace

TokenizerSpec read_wordpiece_vocabulary(const std::string& path) {
  WordPieceSpec model;
  model.vocabulary = read_lines(path);
  const Companions beside(path, "BertTokenizer");
  beside.check_class({"BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer",
                      "MobileBertTokenizer", "PreTrainedTokenizer"});
  TokenizerSpec spec;
  spec.source = path;
  auto id_of = [&](const std::string& token) {
    const auto found = std::find(model.vocabulary.begin(), model.vocabulary.end(), token);
    if (found == model.vocabulary.end()) {
      throw FormatError(fmt::format("{}: the special token \"{}\" is missing", path, token));
    }
    return static_cast<int32_t>(found - model.vocabulary.begin());
  };
  model.unk_token = beside.role("unk_token", "[UNK]");
  const std::string cls = beside.role("cls_token", "[CLS]"),
                    sep = beside.role("sep_token", "[SEP]");
  for (const std::string& token : {beside.role("pad_token", "[PAD]"), model.unk_token, cls, sep,
                                   beside.role("mask_token", "[MASK]")}) {
    spec.added.push_back({.id = id_of(token), .content = token, .special = true});
  }
  beside.add_tokens(model.vocabulary, spec.added);
  std::sort(spec.added.begin(), spec.added.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  const bool lowercase = beside.flag("do_lower_case", true);
  const auto strip = beside.flag("strip_accents");
  spec.normalizer = Json{
      {"type", "BertNormalizer"},
      {"clean_text", true},
      {"handle_chinese_chars", beside.flag("tokenize_chinese_chars", true)},
      {"strip_accents", strip ? Json(*strip) : Json()},
      {"lowercase",
       lowercase}}.dump();
  spec.pre_tokenizer = R"({"type":"BertPreTokenizer"})";
  spec.decoder = R"({"type":"WordPiece","prefix":"##","cleanup":true})";
  spec.model = std::move(model);
  put_bert_template(spec, cls, sep);
  beside.describe(spec);
  return spec;
}

}  // namespace trireme::text
