#include "trireme/text/roles.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::text {

using base::Json;

const ClassDefaults* defaults_of(std::string_view tokenizer_class) {
  static const decltype(ClassDefaults::roles) bert = {{"unk_token", "[UNK]"},
                                                      {"sep_token", "[SEP]"},
                                                      {"pad_token", "[PAD]"},
                                                      {"cls_token", "[CLS]"},
                                                      {"mask_token", "[MASK]"}};
  static const std::vector<ClassDefaults> all = {
      {.names = {"GPT2Tokenizer"},
       .roles = {{"bos_token", kEndOfText}, {"eos_token", kEndOfText}, {"unk_token", kEndOfText}}},
      {.names = {"Qwen2Tokenizer"},
       .roles = {{"eos_token", kEndOfText}, {"unk_token", kEndOfText}, {"pad_token", kEndOfText}}},
      {.names = {"RobertaTokenizer", "BartTokenizer", "LEDTokenizer", "LongformerTokenizer"},
       .roles = {{"bos_token", "<s>"},
                 {"eos_token", "</s>"},
                 {"unk_token", "<unk>"},
                 {"sep_token", "</s>"},
                 {"pad_token", "<pad>"},
                 {"cls_token", "<s>"},
                 {"mask_token", "<mask>"}}},
      {.names = {"BertTokenizer", "ElectraTokenizer", "MobileBertTokenizer"},
       .roles = bert,
       .token_types = true},
      {.names = {"DistilBertTokenizer"}, .roles = bert},
      {.names = {"LlamaTokenizer"},
       .roles = {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}},
       .pads_left = true},
      {.names = {"T5Tokenizer", "MT5Tokenizer"},
       .roles = {{"eos_token", "</s>"}, {"unk_token", "<unk>"}, {"pad_token", "<pad>"}}},
      {.names = {"AlbertTokenizer"},
       .roles = {{"bos_token", "[CLS]"},
                 {"eos_token", "[SEP]"},
                 {"unk_token", "<unk>"},
                 {"sep_token", "[SEP]"},
                 {"pad_token", "<pad>"},
                 {"cls_token", "[CLS]"},
                 {"mask_token", "[MASK]"}}},
      {.names = {"XLNetTokenizer"},
       .roles = {{"bos_token", "<s>"},
                 {"eos_token", "</s>"},
                 {"unk_token", "<unk>"},
                 {"sep_token", "<sep>"},
                 {"pad_token", "<pad>"},
                 {"cls_token", "<cls>"},
                 {"mask_token", "<mask>"}},
       .pads_left = true}};
  for (const ClassDefaults& known : all) {
    if (std::ranges::find(known.names, tokenizer_class) != known.names.end()) return &known;
  }
  return nullptr;
}

std::optional<int32_t> id_of(const TokenizerSpec& spec, std::string_view token) {
  for (const AddedToken& added : spec.added) {
    if (added.content == token) return added.id;
  }
  const std::vector<std::string>& vocabulary = model_vocabulary(spec.model);
  const auto found = std::find(vocabulary.begin(), vocabulary.end(), token);
  if (found == vocabulary.end()) return std::nullopt;
  return static_cast<int32_t>(found - vocabulary.begin());
}

std::string text_of(const TokenizerSpec& spec, int32_t id) {
  for (const AddedToken& token : spec.added) {
    if (token.id == id) return token.content;
  }
  const std::vector<std::string>& vocabulary = model_vocabulary(spec.model);
  return id >= 0 && static_cast<size_t>(id) < vocabulary.size() ? vocabulary[id] : "";
}

void name_roles(TokenizerSpec& spec) {
  constexpr std::pair<const char*, std::string_view> kNames[] = {
      {"bos_token", "<s>"},     {"bos_token", "[BOS]"},  {"eos_token", "</s>"},
      {"eos_token", "[EOS]"},   {"unk_token", "<unk>"},  {"unk_token", "[UNK]"},
      {"sep_token", "<sep>"},   {"sep_token", "[SEP]"},  {"pad_token", "<pad>"},
      {"pad_token", "[PAD]"},   {"cls_token", "<cls>"},  {"cls_token", "[CLS]"},
      {"mask_token", "<mask>"}, {"mask_token", "[MASK]"}};
  auto give = [&](const char* role, std::string_view token) {
    if (!spec.settings.contains(role)) spec.settings[role] = token;
  };
  const std::string end = spec.end_of_document ? text_of(spec, *spec.end_of_document) : "";
  if (!end.empty()) give("eos_token", end);
  if (end == kEndOfText) {
    give("bos_token", end);
    give("unk_token", end);
  }
  for (const auto& [role, name] : kNames) {
    for (const AddedToken& token : spec.added) {
      if (token.special && token.content == name) give(role, name);
    }
  }
  const bool types = std::holds_alternative<WordPieceSpec>(spec.model);
  spec.settings["model_input_names"] =
      ClassDefaults{.names = {}, .roles = {}, .token_types = types}.inputs();
}

void put_template(TokenizerSpec& spec, std::span<const TemplatePart> single,
                  std::span<const TemplatePart> pair) {
  Json tokens = Json::object();
  auto parts = [&](std::span<const TemplatePart> of) {
    Json list = Json::array();
    for (const TemplatePart& part : of) {
      if (part.text == "$A" || part.text == "$B") {
        list.push_back({{"Sequence", {{"id", part.text.substr(1)}, {"type_id", part.type}}}});
        continue;
      }
      const auto id = id_of(spec, part.text);
      if (!id) {
        throw base::FormatError(fmt::format(
            "{}: \"{}\", which stands around texts, is no token of it", spec.source, part.text));
      }
      list.push_back({{"SpecialToken", {{"id", part.text}, {"type_id", part.type}}}});
      tokens[part.text] = {{"id", part.text}, {"ids", {*id}}, {"tokens", {part.text}}};
    }
    return list;
  };
  Json stage = {{"type", "TemplateProcessing"}, {"single", parts(single)}, {"pair", parts(pair)}};
  stage["special_tokens"] = tokens;
  spec.post_processor = stage.dump();
}

void put_around(TokenizerSpec& spec, const std::string& before, const std::string& after) {
  std::vector<TemplatePart> single, pair;
  for (const auto& [text, type] : {std::pair("$A", 0), std::pair("$B", 1)}) {
    if (!before.empty()) pair.push_back({before, type});
    pair.push_back({text, type});
    if (!after.empty()) pair.push_back({after, type});
    if (type == 0) single = pair;
  }
  put_template(spec, single, pair);
}

void put_bert_template(TokenizerSpec& spec, const std::string& cls, const std::string& sep) {
  const TemplatePart parts[] = {{cls, 0}, {"$A", 0}, {sep, 0}, {"$B", 1}, {sep, 1}};
  put_template(spec, std::span(parts, 3), parts);
}

}  // namespace trireme::text
