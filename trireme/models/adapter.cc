#include "trireme/models/adapter.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/models/family.h"

namespace trireme::models {

namespace {

/// A map from patterns of modules to values, in its order.
template <class T, class Fits>
nn::LowRank::Patterns<T> read_patterns(ConfigReader& get, const char* key, const std::string& expected, const Fits& fits) {
  nn::LowRank::Patterns<T> patterns;
  const base::Json* given = get.value_of(key);
  if (!given) return patterns;
  if (!given->is_object()) get.refuse(key, *given, expected);
  for (const auto& [pattern, value] : given->items()) {
    if (!fits(value)) get.refuse(key, *given, expected);
    nn::matches_module(pattern, "");  // is it a pattern?
    patterns.emplace_back(pattern, value.template get<T>());
  }
  return patterns;
}

}  // namespace

nn::LowRank read_adapter(const base::Json& tree) {
  if (!tree.contains("adapter") || tree["adapter"].is_null()) return {};
  const base::Json& given = tree["adapter"];
  if (!given.is_object())
    throw base::ConfigError(fmt::format("model.adapter is {}, expected a map: {{r: 8, target_modules: [...]}} makes a new one, {{path: DIR}} "
                                        "takes that of PEFT's folder", given.dump()));
  ConfigReader get(given, "lora", "model.adapter");
  nn::LowRank adapter{.rank = 8};
  get("r", adapter.rank);
  get("lora_alpha", adapter.alpha, 0, 1e9);
  get("use_rslora", adapter.root);
  get("lora_dropout", adapter.dropout, 0, 0.999);
  get("use_dora", adapter.magnitudes);
  adapter.ranks = read_patterns<int64_t>(get, "rank_pattern", "a map from names of modules to ranks >= 1, for example {layers.0.q_proj: 4}",
                                         [](const base::Json& value) { return value.is_number_integer() && value.get<int64_t>() >= 1; });
  adapter.alphas = read_patterns<double>(get, "alpha_pattern", "a map from names of modules to numbers >= 0, for example {q_proj: 16}",
                                         [](const base::Json& value) { return value.is_number() && value.get<double>() >= 0; });
  for (const char* key : {"lora_bias", "use_qalora", "use_bdlora"}) get.only(key, false);
  get.only("bias", "none");
  get.only("peft_type", "LORA");
  for (const char* key : {"modules_to_save", "layers_to_transform", "layers_pattern", "target_parameters", "exclude_modules",
                          "trainable_token_indices", "layer_replication", "kasa_config"})
    if (const base::Json* value = get.value_of(key); value && !value->empty())
      get.refuse(key, *value, "null: that is not supported");
  get.ignore({"path", "base_model_name_or_path", "task_type", "inference_mode", "init_lora_weights", "fan_in_fan_out",
              "revision", "auto_mapping", "megatron_config", "megatron_core", "loftq_config", "eva_config", "corda_config",
              "qalora_group_size", "peft_version", "runtime_config", "ensure_weight_tying",
              "alora_invocation_tokens", "arrow_config", "lora_ga_config", "target_modules_bd_a",
              "target_modules_bd_b", "velora_config", "monteclora_config"});
  const base::Json* targets = get.value_of("target_modules");
  if (!targets || !targets->is_array() || targets->empty())
    get.refuse("target_modules", targets ? *targets : base::Json(), "names of linear modules, for example [q_proj, v_proj]");
  for (const base::Json& target : *targets) {
    if (!target.is_string()) get.refuse("target_modules", *targets, "names of modules");
    adapter.targets.push_back(target);
  }
  get.finish();
  return adapter;
}

std::optional<AdapterDifference> adapter_difference(const base::Json& given, const base::Json& held) {
  struct Key {
    const char* name;
    base::Json otherwise;
    bool shapes;
  };
  const Key keys[] = {{"r", 8, true},          {"target_modules", {}, true}, {"rank_pattern", {}, true},  {"use_dora", false, true},
                      {"lora_alpha", 8, false}, {"use_rslora", false, false}, {"alpha_pattern", {}, false}};
  for (const Key& key : keys) {
    auto value = [&](const base::Json& adapter) {
      base::Json found = adapter.value(key.name, key.otherwise);
      if (found.empty()) found = key.otherwise;
      if (found.is_array()) std::sort(found.begin(), found.end());  // modules have no order
      return found;
    };
    if (base::Json ours = value(given), theirs = value(held); ours != theirs)
      return AdapterDifference{key.name, std::move(ours), std::move(theirs), key.shapes};
  }
  return std::nullopt;
}

}  // namespace trireme::models
