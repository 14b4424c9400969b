#include "trireme/checkpoint/hf.h"

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

bool is_gpt2(const base::Json& config) {
  for (const char* key : {"model_type", "family"}) {
    if (config.contains(key) && config[key].is_string()) return config[key] == "gpt2";
  }
  return false;
}

void copy_file(const fs::path& from, const std::string& folder) {
  base::FileWriter writer(folder + "/" + from.filename().string());
  writer.write(base::read_file(from.string()));
  writer.close();
}

}  // namespace

std::optional<std::string> model_name(const base::Json& config, const std::string& stored) {
  if (!is_gpt2(config)) return stored;
  bool prefixed = stored.starts_with("transformer."), head = stored.starts_with("lm_head.");
  std::string name = prefixed || head ? stored : "transformer." + stored;
  if (name.starts_with("transformer.h.") &&
      (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"))) {
    return std::nullopt;
  }
  return name;
}

std::string tied_to(const base::Json& config, const std::string& name) {
  base::Json tied_value = config.value("tie_word_embeddings", base::Json(true));
  if (!tied_value.is_boolean()) {
    throw base::FormatError(fmt::format(
        "config.json: \"tie_word_embeddings\" is {}; expected true or false", tied_value.dump()));
  }
  bool tied = tied_value.get<bool>();
  return is_gpt2(config) && tied && name == "lm_head.weight" ? "transformer.wte.weight" : "";
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
