#pragma once
// Family: what registry.cc knows of a model family. ConfigReader: reads a configuration tree into a struct and
// refuses what is left over.

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/base/registry.h"
#include "trireme/models/blocks/heads.h"
#include "trireme/nn/layer.h"

namespace trireme::models {

/// A row of `trireme models`: what a family can do, in words. Empty: no.
struct Support {
  std::string architecture = {};  // Hugging Face's class
  std::vector<HeadKind> heads = {};
  std::string task = {};          // what it learns where that is none of these heads
  std::string tensor = {};        // what tensor_parallel_size must suit
  std::string sequence = "yes", pipeline = "yes";
  std::string ties = {};     // by default
  std::string import = "safetensors, bin", export_ = "safetensors, bin", tokenizer = "yes";
};

struct Family {
  std::function<nn::ModelDef(const base::Json& tree, int tp)> make;
  std::function<base::Json(const base::Json& tree)> resolve;
  Support support = {};
  std::vector<std::string> begins_with = {};  // other families whose weights and keys it takes over
};

/// A family whose configuration is a struct. `read` makes one of a tree and refuses what it does not know; into `resolved`,
/// unless null, goes the tree with every key filled in.
template <class Config>
Family family_of(Config (*read)(const base::Json& tree, base::Json* resolved),
                 nn::ModelDef (*make)(const Config& config, int tp), Support support) {
  return {.make = [=](const base::Json& tree, int tp) { return make(read(tree, nullptr), tp); },
          .resolve =
              [=](const base::Json& tree) {
                base::Json resolved;
                read(tree, &resolved);
                return resolved;
              },
          .support = std::move(support)};
}

/// All families by the name that `family`, or `model_type` in a config.json, gives them.
base::Registry<Family>& families();

Family bloom_family();
Family gemma2_family();
Family gemma3_family();
Family gpt2_family();
Family gpt_neo_family();
Family gpt_neox_family();
Family gptj_family();
Family llama_family();
Family mistral_family();
Family mixtral_family();
Family opt_family();
Family phi3_family();
Family qwen2_family();
Family qwen3_family();
Family qwen3_moe_family();
Family bert_family();
Family roberta_family();
Family megatron_bert_family();
Family electra_family();
Family albert_family();
Family distilbert_family();
Family t5_family();
Family mt5_family();
Family bart_family();
Family mbart_family();
Family blenderbot_family();
Family blenderbot_small_family();
Family vit_family();
Family deit_family();
Family vit_mae_family();
Family moco_v3_family();
Family clip_family();
Family resmlp_family();
Family swin_family();
Family swinv2_family();

/// ConfigError unless `part` divides `whole`; both are keys of the model's configuration.
void check_divides(const char* part_key, int64_t part, const char* whole_key, int64_t whole);

/// Visits keys of a tree: reads those that are there into the fields, notes what was read and what it came to.
class ConfigReader {
 public:
  /// `path` of the tree, for messages.
  ConfigReader(const base::Json& tree, std::string family, std::string path = "model");
  /// Reads `key` if present; ConfigError names key, value and the expected type.
  void operator()(const char* key, int64_t& field, int64_t min = 1);
  void operator()(const char* key, double& field, double min, double max);
  void operator()(const char* key, bool& field);
  void operator()(const char* key, std::string& field);
  /// null, as an absent key, leaves what the field holds.
  void operator()(const char* key, std::optional<int64_t>& field, int64_t min = 1);
  void operator()(const char* key, std::optional<double>& field, double min, double max);
  /// A key that has another name too.
  void either(const char* key, const char* other, int64_t& field);
  /// Refuses any other value: for what a family's files may say but trireme does not have.
  void only(const char* key, const base::Json& value);
  /// The value of a key that is no plain one; null where it is absent or null.
  const base::Json* value_of(const char* key) { return find(key); }
  bool has(const char* key) const { return tree_.contains(key); }
  /// What a key came to, where the family finds it itself.
  void note(const char* key, base::Json value) { resolved_[key] = std::move(value); }
  [[noreturn]] void refuse(const char* key, const base::Json& value, const std::string& expected) const;
  /// Keys that are known to change nothing here.
  void ignore(std::initializer_list<const char*> keys);
  /// ConfigError for keys that nobody read, with the nearest known name.
  void finish() const;
  /// The tree with everything that was read filled in, for config.json; `architecture` is Hugging Face's class (empty: as
  /// the tree has it).
  base::Json resolved(const std::string& architecture = {}) const;
  /// What was read, without the rest.
  const base::Json& values() const { return resolved_; }

 private:
  const base::Json* find(const char* key);
  const base::Json& tree_;
  std::string family_, path_;
  std::set<std::string> known_;
  base::Json resolved_;
};

}  // namespace trireme::models
