#include "trireme/checkpoint/hf.h"

#include <algorithm>
#include <filesystem>

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
                                           "vocab.bpe"};

/// What a family's files say otherwise than its model.
struct FamilyFiles {
  std::string family;
  std::string prefix;  // of everything but the head; some files lack it
  std::string tokens;  // what a tied head repeats
  bool tied = false;   // where config.json does not say
  std::string head = "lm_head.weight";
  std::vector<std::string> buffers = {};  // ends of names that are no weights
};

const FamilyFiles* files_of(const base::Json& config) {
  static const std::vector<FamilyFiles> kFiles = {
      {"gpt2", "transformer.", "transformer.wte.weight", true, "lm_head.weight", {".attn.bias", ".attn.masked_bias"}},
      {"gpt_neo", "transformer.", "transformer.wte.weight", true, "lm_head.weight",
       {".attn.attention.bias", ".attn.attention.masked_bias"}},
      {"gptj", "transformer.", "transformer.wte.weight", false, "lm_head.weight", {".attn.bias", ".attn.masked_bias"}},
      {"gpt_neox", "gpt_neox.", "gpt_neox.embed_in.weight", false, "embed_out.weight",
       {".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"}},
      {"opt", "model.", "model.decoder.embed_tokens.weight", true},
      {"bloom", "transformer.", "transformer.word_embeddings.weight", true},
      {"llama", "model.", "model.embed_tokens.weight", false, "lm_head.weight", {".rotary_emb.inv_freq"}},
      {"mistral", "model.", "model.embed_tokens.weight", false, "lm_head.weight", {".rotary_emb.inv_freq"}},
      {"qwen2", "model.", "model.embed_tokens.weight"},
      {"qwen3", "model.", "model.embed_tokens.weight"},
      {"qwen3_moe", "model.", "model.embed_tokens.weight"},
      {"gemma2", "model.", "model.embed_tokens.weight", true},
      {"gemma3_text", "model.", "model.embed_tokens.weight", true},
      {"phi3", "model.", "model.embed_tokens.weight"},
      {"mixtral", "model.", "model.embed_tokens.weight"},
  };
  for (const char* key : {"model_type", "family"}) {
    if (!config.contains(key) || !config[key].is_string()) continue;
    auto found = std::ranges::find(kFiles, config[key].get<std::string>(), &FamilyFiles::family);
    return found == kFiles.end() ? nullptr : &*found;
  }
  return nullptr;
}

void copy_file(const fs::path& from, const std::string& folder) {
  base::FileWriter writer(folder + "/" + from.filename().string());
  writer.write(base::read_file(from.string()));
  writer.close();
}

}  // namespace

std::optional<std::string> model_name(const base::Json& config, const std::string& stored) {
  constexpr std::string_view kPeft = "base_model.model.";
  if (config.contains("peft_type") && stored.starts_with(kPeft)) return stored.substr(kPeft.size());
  const FamilyFiles* files = files_of(config);
  if (!files) return stored;
  for (const std::string& end : files->buffers)
    if (stored.ends_with(end)) return std::nullopt;
  // transformers 5 calls every head alike.
  if (stored == "lm_head.weight") return files->head;
  const std::string head = files->head.substr(0, files->head.find('.') + 1);
  return stored.starts_with(files->prefix) || stored.starts_with(head) ? stored : files->prefix + stored;
}

std::string tied_to(const base::Json& config, const std::string& name) {
  const FamilyFiles* files = files_of(config);
  if (!files) return "";
  base::Json tied_value = config.value("tie_word_embeddings", base::Json(files->tied));
  if (!tied_value.is_boolean()) {
    throw base::FormatError(fmt::format(
        "config.json: \"tie_word_embeddings\" is {}; expected true or false", tied_value.dump()));
  }
  return tied_value.get<bool>() && name == files->head ? files->tokens : "";
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
