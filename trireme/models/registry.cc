#include "trireme/models/registry.h"

#include "trireme/base/error.h"
#include "trireme/base/nearest.h"
#include "trireme/models/family.h"

namespace trireme::models {
namespace {

const Family& find_family(const base::Json& tree) {
  for (const char* key : {"family", "model_type"})
    if (tree.contains(key) && tree[key].is_string()) return families().get(tree[key].get<std::string>());
  throw base::ConfigError(
      fmt::format("model.family is not given; known families: {}", fmt::join(families().names(), ", ")));
}

}  // namespace

base::Registry<Family>& families() {
  static base::Registry<Family> all("model.family", {{"gpt2", gpt2_family()}});
  return all;
}

nn::ModelDef make_model(const base::Json& tree, int tp) { return find_family(tree).make(tree, tp); }
base::Json resolve_model(const base::Json& tree) { return find_family(tree).resolve(tree); }

ConfigReader::ConfigReader(const base::Json& tree, std::string family) : tree_(tree), family_(std::move(family)) {
  // Keys of every Hugging Face configuration that say nothing about the arithmetic of training.
  ignore({"family", "model_type", "pretrained", "architectures", "torch_dtype", "dtype", "transformers_version",
          "_name_or_path", "use_cache", "task_specific_params", "bos_token_id", "eos_token_id", "pad_token_id",
          "return_dict", "output_hidden_states", "output_attentions", "id2label", "label2id", "chunk_size_feed_forward",
          "is_encoder_decoder", "problem_type", "gradient_checkpointing"});
}

void ConfigReader::ignore(std::initializer_list<const char*> keys) { known_.insert(keys.begin(), keys.end()); }

const base::Json* ConfigReader::find(const char* key) {
  known_.insert(key);
  return tree_.contains(key) && !tree_[key].is_null() ? &tree_[key] : nullptr;
}

void ConfigReader::refuse(const char* key, const base::Json& value, const std::string& expected) const {
  throw base::ConfigError(fmt::format("model.{} is {}, expected {} (family {})", key, value.dump(), expected, family_));
}

void ConfigReader::operator()(const char* key, int64_t& field, int64_t min) {
  const base::Json* value = find(key);
  if (!value) return;
  if (!value->is_number_integer() || value->get<int64_t>() < min) refuse(key, *value, fmt::format("an integer >= {}", min));
  field = value->get<int64_t>();
}

void ConfigReader::operator()(const char* key, double& field, double min, double max) {
  const base::Json* value = find(key);
  if (!value) return;
  if (!value->is_number() || value->get<double>() < min || value->get<double>() > max)
    refuse(key, *value, fmt::format("a number in [{}, {}]", min, max));
  field = value->get<double>();
}

void ConfigReader::operator()(const char* key, bool& field) {
  const base::Json* value = find(key);
  if (!value) return;
  if (!value->is_boolean()) refuse(key, *value, "true or false");
  field = value->get<bool>();
}

void ConfigReader::operator()(const char* key, std::string& field) {
  const base::Json* value = find(key);
  if (!value) return;
  if (!value->is_string()) refuse(key, *value, "a word");
  field = value->get<std::string>();
}

void ConfigReader::finish() const {
  for (const auto& [key, value] : tree_.items()) {
    if (known_.contains(key)) continue;
    const std::optional<std::string> meant = base::nearest(key, {known_.begin(), known_.end()});
    throw base::ConfigError(fmt::format("model.{} is not a key of family {}{}", key, family_,
                                        meant ? fmt::format("; did you mean '{}'?", *meant) : ""));
  }
}

}  // namespace trireme::models
