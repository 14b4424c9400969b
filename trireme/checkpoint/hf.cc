#include "trireme/checkpoint/hf.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/io.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTokenizerFiles[] = {"tokenizer.json",
                                           "tokenizer_config.json",
                                           "special_tokens_map.json",
                                           "added_tokens.json",
                                           "vocab.json",
                                           "merges.txt",
                                           "vocab.txt",
                                           "spiece.model",
                                           "tokenizer.model",
                                           "chat_template.jinja",
                                           "encoder.json",
                                           "vocab.bpe",
                                           "sentencepiece.bpe.model",
                                           "generation_config.json",
                                           "preprocessor_config.json",
                                           "processor_config.json"};

/// What a family's files say otherwise than its model.
struct FamilyFiles {
  using Ties = std::vector<std::pair<std::string, std::string>>;
  std::string family;
  std::string prefix;  // of everything but heads; files of a bare model lack it
  Ties ties;           // names that repeat a parameter where the configuration ties them
  bool tied = true;    // where config.json does not say
  std::vector<std::string> buffers = {};  // ends of names that are no weights
  std::string head = "lm_head.weight";    // of a decoder
  std::string outside = "";               // beginning of more names without the prefix
  std::string stripped = "";              // beginning that some classes' files put before every name but heads'
  std::string architecture = "";          // only of files of this class
  std::string base = "";                  // what that class calls the prefix
};

/// Beginnings of heads' names, which have no prefix.
constexpr std::string_view kHeads[] = {"lm_head.",    "embed_out.",     "cls.",       "classifier.",       "qa_outputs.",
                                       "predictions.", "sop_classifier.", "generator_", "discriminator_",    "sequence_summary.",
                                       "vocab_",      "pre_classifier.", "classification_head.", "final_logits_bias", "score."};

std::vector<FamilyFiles> make_files() {
  const std::vector<std::string> places = {"embeddings.position_ids"};
  const FamilyFiles::Ties llama = {{"lm_head.weight", "model.embed_tokens.weight"}};
  const FamilyFiles::Ties gpt2 = {{"lm_head.weight", "transformer.wte.weight"}};
  const FamilyFiles::Ties t5 = {
      {"encoder.embed_tokens.weight", "shared.weight"}, {"decoder.embed_tokens.weight", "shared.weight"}, {"lm_head.weight", "shared.weight"}};
  const FamilyFiles::Ties bart = {{"model.encoder.embed_tokens.weight", "model.shared.weight"},
                                  {"model.decoder.embed_tokens.weight", "model.shared.weight"},
                                  {"lm_head.weight", "model.shared.weight"}};
  auto answers = [](const std::string& family, const std::string& architecture) {
    return FamilyFiles{.family = family, .prefix = "model.", .ties = {}, .buffers = {".rotary_emb.inv_freq"},
                       .architecture = architecture, .base = "transformer."};
  };
  auto decoder_alone = [](const std::string& family, const std::string& architecture) {
    return FamilyFiles{.family = family, .prefix = "model.", .ties = {{"lm_head.weight", "model.decoder.embed_tokens.weight"}},
                       .architecture = architecture};
  };
  return {
      {"gpt2", "transformer.", gpt2, true, {".attn.bias", ".attn.masked_bias"}},
      {"gpt_neo", "transformer.", gpt2, true, {".attn.attention.bias", ".attn.attention.masked_bias"}},
      {"gptj", "transformer.", gpt2, false, {".attn.bias", ".attn.masked_bias"}},
      {"gpt_neox", "gpt_neox.", {{"embed_out.weight", "gpt_neox.embed_in.weight"}}, false,
       {".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"}, "embed_out.weight"},
      {"opt", "model.", {{"lm_head.weight", "model.decoder.embed_tokens.weight"}}},
      {"bloom", "transformer.", {{"lm_head.weight", "transformer.word_embeddings.weight"}}},
      answers("llama", "LlamaForQuestionAnswering"),
      answers("qwen2", "Qwen2ForQuestionAnswering"),
      answers("qwen3", "Qwen3ForQuestionAnswering"),
      answers("qwen3_moe", "Qwen3MoeForQuestionAnswering"),
      {"llama", "model.", llama, false, {".rotary_emb.inv_freq"}},
      {"mistral", "model.", llama, false, {".rotary_emb.inv_freq"}},
      {"qwen2", "model.", llama, false},
      {"qwen3", "model.", llama, false},
      {"qwen3_moe", "model.", llama, false},
      {"gemma2", "model.", llama},
      {"gemma3_text", "model.", llama},
      {"phi3", "model.", llama, false},
      {"mixtral", "model.", llama, false},
      {"bert", "bert.",
       {{"cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"}, {"cls.predictions.decoder.bias", "cls.predictions.bias"}},
       true, places},
      {"megatron-bert", "bert.",
       {{"cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"}, {"cls.predictions.decoder.bias", "cls.predictions.bias"}},
       true, places},
      {"roberta", "roberta.",
       {{"lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"}, {"lm_head.decoder.bias", "lm_head.bias"}}, true, places},
      {"electra", "electra.", {{"generator_lm_head.weight", "electra.embeddings.word_embeddings.weight"}}, true, places},
      {"albert", "albert.",
       {{"predictions.decoder.weight", "albert.embeddings.word_embeddings.weight"}, {"predictions.decoder.bias", "predictions.bias"}}, true, places},
      {"distilbert", "distilbert.", {{"vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight"}}, true, places},
      {.family = "t5", .prefix = "", .ties = t5, .stripped = "transformer."},
      {.family = "mt5", .prefix = "", .ties = t5, .stripped = "transformer."},
      decoder_alone("bart", "BartForCausalLM"),
      decoder_alone("mbart", "MBartForCausalLM"),
      decoder_alone("blenderbot", "BlenderbotForCausalLM"),
      decoder_alone("blenderbot-small", "BlenderbotSmallForCausalLM"),
      {"bart", "model.", bart},
      {"mbart", "model.", bart},
      {"blenderbot", "model.", bart},
      {"blenderbot-small", "model.", bart},
      {"vit", "vit.", {}},
      {"deit", "deit.", {}},
      {.family = "vit_mae", .prefix = "vit.", .ties = {}, .outside = "decoder."},
      {"swin", "swin.", {}, true, {".relative_position_index"}},
      {"swinv2", "swinv2.", {}, true, {".relative_position_index", ".relative_coords_table"}},
      {"clip", "", {}, true, places},
  };
}

const FamilyFiles* files_of(const base::Json& config) {
  static const std::vector<FamilyFiles> kFiles = make_files();
  for (const char* key : {"model_type", "family"}) {
    if (!config.contains(key) || !config[key].is_string()) continue;
    const auto fits = [&](const FamilyFiles& files) {
      const bool of_class = files.architecture.empty() || config.value("architectures", base::Json()) == base::Json::array({files.architecture});
      return of_class && config[key] == files.family;
    };
    auto found = std::ranges::find_if(kFiles, fits);
    return found == kFiles.end() ? nullptr : &*found;
  }
  return nullptr;
}

/// Old files of BERT spell a norm's parameters gamma and beta; transformers 5 takes the layers of a masked autoencoder's
/// decoder for those of an encoder when it saves them.
std::string modern(std::string name) {
  for (const auto& [theirs, ours] : {std::pair{".LayerNorm.gamma", ".LayerNorm.weight"},
                                     {".LayerNorm.beta", ".LayerNorm.bias"},
                                     {"decoder.decoder_encoder.layer.", "decoder.decoder_layers."}})
    if (size_t at = name.find(theirs); at != std::string::npos) name.replace(at, std::string_view(theirs).size(), ours);
  return name;
}

void copy_file(const fs::path& from, const std::string& folder) {
  base::FileWriter writer(folder + "/" + from.filename().string());
  writer.write(base::read_file(from.string()));
  writer.close();
}

}  // namespace

std::optional<std::string> model_name(const base::Json& config, const std::string& stored) {
  constexpr std::string_view kPeft = "base_model.model.";
  if (config.contains("peft_type") && stored.starts_with(kPeft)) {
    std::string name = stored.substr(kPeft.size());
    if (name.ends_with(".lora_magnitude_vector.weight")) name.resize(name.rfind('.'));  // as some versions spell it
    return name;
  }
  const FamilyFiles* files = files_of(config);
  if (!files) return stored;
  for (const std::string& end : files->buffers)
    if (stored.ends_with(end)) return std::nullopt;
  // transformers 5 calls every decoder's head alike.
  if (stored == "lm_head.weight") return files->head;
  std::string name = modern(stored);
  if (!files->stripped.empty() && name.starts_with(files->stripped)) name.erase(0, files->stripped.size());
  if (!files->base.empty() && name.starts_with(files->base)) name.replace(0, files->base.size(), files->prefix);
  const bool of_head = std::ranges::any_of(kHeads, [&](std::string_view head) { return name.starts_with(head); });
  const bool of_other = !files->outside.empty() && name.starts_with(files->outside);
  return name.starts_with(files->prefix) || of_head || of_other ? name : files->prefix + name;
}

std::string file_name(const base::Json& config, const std::string& name) {
  const FamilyFiles* files = files_of(config);
  if (!files || files->base.empty() || !name.starts_with(files->prefix)) return name;
  return files->base + name.substr(files->prefix.size());
}

std::string tied_to(const base::Json& config, const std::string& name) {
  const FamilyFiles* files = files_of(config);
  if (!files) return "";
  base::Json tied_value = config.value("tie_word_embeddings", base::Json(files->tied));
  if (!tied_value.is_boolean()) {
    throw base::FormatError(fmt::format(
        "config.json: \"tie_word_embeddings\" is {}; expected true or false", tied_value.dump()));
  }
  for (const auto& [repeated, original] : files->ties) {
    // What the halves of a model share is shared whatever the head does.
    const bool inner = repeated.ends_with("embed_tokens.weight");
    if (name == repeated && (inner || tied_value.get<bool>())) return original;
  }
  return "";
}

void copy_tokenizer(const std::string& from, const std::string& folder) {
  if (!fs::exists(from))
    throw base::IoError(from, ENOENT, "copying the tokenizer into a checkpoint");
  if (!fs::is_directory(from)) return copy_file(from, folder);
  for (const char* name : kTokenizerFiles) {
    if (fs::is_regular_file(fs::path(from) / name)) copy_file(fs::path(from) / name, folder);
  }
}

}  // namespace trireme::checkpoint
