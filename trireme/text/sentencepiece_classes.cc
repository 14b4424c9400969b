#include <algorithm>
#include <filesystem>

#include "trireme/base/error.h"
#include "trireme/base/json.h"
#include "trireme/text/charsmap.h"
#include "trireme/text/companions.h"
#include "trireme/text/roles.h"
#include "trireme/text/sentencepiece_model.h"

namespace trireme::text {
namespace {

namespace fs = std::filesystem;
using base::Json;

// The class that transformers takes for a type of model, where the tokenizer's own files name none.
constexpr std::pair<std::string_view, std::string_view> kClasses[] = {
    {"t5", "T5Tokenizer"},
    {"mt5", "MT5Tokenizer"},
    {"llama", "LlamaTokenizer"},
    {"mistral", "LlamaTokenizer"},
    {"albert", "AlbertTokenizer"},
    {"xlnet", "XLNetTokenizer"},
    {"barthez", "BarthezTokenizer"},
    {"big_bird", "BigBirdTokenizer"},
    {"camembert", "CamembertTokenizer"},
    {"deberta-v2", "DebertaV2Tokenizer"},
    {"fnet", "FNetTokenizer"},
    {"gemma", "GemmaTokenizer"},
    {"m2m_100", "M2M100Tokenizer"},
    {"marian", "MarianTokenizer"},
    {"mbart", "MBartTokenizer"},
    {"nllb", "NllbTokenizer"},
    {"pegasus", "PegasusTokenizer"},
    {"reformer", "ReformerTokenizer"},
    {"rembert", "RemBertTokenizer"},
    {"udop", "UdopTokenizer"},
    {"xglm", "XGLMTokenizer"},
    {"xlm-roberta", "XLMRobertaTokenizer"}};

// config.json's type of model, or the pieces of T5, which begin as no other's do.
std::string_view presumed_class(const SentencePieceModel& model, const std::string& path) {
  const fs::path config = fs::path(path).parent_path() / "config.json";
  if (fs::exists(config)) {
    const Json json = base::read_json(config.string());
    const auto type = json.is_object() ? json.find("model_type") : json.end();
    if (type != json.end() && type->is_string()) {
      for (const auto& [name, tokenizer_class] : kClasses) {
        if (type->get<std::string>() == name) return tokenizer_class;
      }
    }
    return "";
  }
  const auto begins = [&](std::initializer_list<std::string_view> pieces) {
    return model.pieces.size() > pieces.size() &&
           std::ranges::equal(pieces, std::span(model.pieces).first(pieces.size()), {}, {},
                              &SentencePiece::text);
  };
  const bool t5 = fs::path(path).filename() == "spiece.model" && begins({"<pad>", "</s>", "<unk>"});
  return t5 ? "T5Tokenizer" : "";
}

UnigramSpec& unigram_of(TokenizerSpec& spec, const std::string& of) {
  if (auto* unigram = std::get_if<UnigramSpec>(&spec.model)) return *unigram;
  throw base::FormatError(
      fmt::format("{}: a BPE model; {} is for Unigram models", spec.source, of));
}

// <extra_id_0> has the highest id.
void add_extra_ids(int64_t count, TokenizerSpec& spec, UnigramSpec& model) {
  for (int64_t i = count; i-- > 0;) {
    const std::string text = fmt::format("<extra_id_{}>", i);
    if (id_of(spec, text)) continue;
    const auto id = static_cast<int32_t>(model.vocabulary.size());
    spec.added.push_back({.id = id, .content = text, .special = true});
    model.vocabulary.push_back(text);
    model.scores.push_back(0);
  }
}

// Words between whitespace, each on its own; `steps` go before SentencePiece's normalization.
void set_word_stages(const SentencePieceModel& model, Json steps, bool prefix,
                     TokenizerSpec& spec) {
  if (!model.charsmap.empty()) {
    steps.push_back(
        {{"type", "Precompiled"}, {"precompiled_charsmap", encode_base64(model.charsmap)}});
  }
  spec.normalizer.clear();
  if (!steps.empty()) spec.normalizer = Json{{"type", "Sequence"}, {"normalizers", steps}}.dump();
  const Json metaspace = {{"type", "Metaspace"},
                          {"replacement", "\u2581"},
                          {"prepend_scheme", prefix ? "always" : "never"},
                          {"split", true}};
  spec.pre_tokenizer =
      Json{{"type", "Sequence"}, {"pretokenizers", {{{"type", "WhitespaceSplit"}}, metaspace}}}
          .dump();
  spec.decoder = metaspace.dump();
}

void set_albert_stages(const SentencePieceModel& model, const Companions& beside, bool lowercase,
                       TokenizerSpec& spec, UnigramSpec& unigram) {
  Json steps = Json::array();
  for (const char* quotes : {"``", "''"}) {
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", quotes}}}, {"content", "\""}});
  }
  if (!beside.flag("keep_accents", false)) {
    steps.push_back({{"type", "NFKD"}});
    steps.push_back({{"type", "StripAccents"}});
  }
  if (lowercase) steps.push_back({{"type", "Lowercase"}});
  set_word_stages(model, steps, beside.flag("add_prefix_space", true), spec);
  // A piece such as "9," is taken for nothing: numbers are cut from commas.
  for (size_t id = 0; id < unigram.vocabulary.size(); ++id) {
    const std::string& text = unigram.vocabulary[id];
    if (text.size() > 1 && text.ends_with(',') && text[text.size() - 2] >= '0' &&
        text[text.size() - 2] <= '9') {
      unigram.scores[id] -= 100;
    }
  }
}

// The prefix stands before the text alone, or (`legacy`) after each added token too.
void set_llama_stages(const Companions& beside, TokenizerSpec& spec) {
  const bool prefix = beside.flag("add_prefix_space", true);
  const char* scheme = !prefix ? "never" : beside.flag("legacy", false) ? "always" : "first";
  spec.normalizer.clear();
  spec.pre_tokenizer = Json{
      {"type", "Metaspace"},
      {"replacement", "\u2581"},
      {"prepend_scheme", scheme},
      {"split", false}}.dump();
  Json decoders = {{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
                   {{"type", "ByteFallback"}},
                   {{"type", "Fuse"}}};
  if (prefix) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  spec.decoder = Json{{"type", "Sequence"}, {"decoders", decoders}}.dump();
}

}  // namespace

void use_as_companions_say(const SentencePieceModel& model, const std::string& path,
                           TokenizerSpec& spec) {
  const Companions beside(path, presumed_class(model, path));
  beside.check_class({"T5Tokenizer", "MT5Tokenizer", "LlamaTokenizer", "AlbertTokenizer",
                      "XLNetTokenizer", "PreTrainedTokenizer"});
  const std::string& of = beside.tokenizer_class();
  const bool t5 = of == "T5Tokenizer" || of == "MT5Tokenizer", albert = of == "AlbertTokenizer",
             xlnet = of == "XLNetTokenizer";
  if (t5) {
    add_extra_ids(beside.number("extra_ids", 100), spec, unigram_of(spec, of));
    set_word_stages(model, Json::array(), true, spec);
  }
  if (of == "LlamaTokenizer" && std::holds_alternative<BpeSpec>(spec.model)) {
    set_llama_stages(beside, spec);
  }
  if (albert || xlnet) {
    set_albert_stages(model, beside, beside.flag("do_lower_case", albert), spec,
                      unigram_of(spec, of));
  }
  beside.add_tokens(model_vocabulary(spec.model), spec.added);
  beside.describe(spec);
  auto role = [&](const char* name) {
    if (spec.settings.contains(name)) return spec.settings[name].get<std::string>();
    throw base::FormatError(fmt::format("{}: {} needs a {}", path, of, name));
  };
  if (t5) {
    const std::string end = role("eos_token");
    const TemplatePart parts[] = {{"$A"}, {end}, {"$B"}, {end}};
    put_template(spec, std::span(parts, 2), parts);
  } else if (albert) {
    const std::string cls = role("cls_token"), sep = role("sep_token");
    put_bert_template(spec, cls, sep);
  } else if (!xlnet) {
    beside.put_ends(spec);
  } else {
    const std::string sep = role("sep_token"), cls = role("cls_token");
    const TemplatePart single[] = {{"$A"}, {sep}, {cls, 2}};
    const TemplatePart pair[] = {{"$A"}, {sep}, {"$B", 1}, {sep, 1}, {cls, 2}};
    put_template(spec, single, pair);
  }
}

}  // namespace trireme::text
