#include "trireme/models/adapter.h"

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/models/family.h"

namespace trireme::models {

nn::LowRank read_adapter(const base::Json& tree) {
  if (!tree.contains("adapter") || tree["adapter"].is_null()) return {};
  const base::Json& given = tree["adapter"];
  if (!given.is_object())
    throw base::ConfigError(fmt::format("model.adapter is {}, expected a map: {{r: 8, target_modules: [...]}} makes a new one, {{path: DIR}} "
                                        "takes that of PEFT's folder", given.dump()));
  ConfigReader get(given, "lora", "model.adapter");
  nn::LowRank adapter{.rank = 8};
  double alpha = 8, dropout = 0;
  bool root = false;
  get("r", adapter.rank);
  get("lora_alpha", alpha, 0, 1e9);
  get("use_rslora", root);
  get("lora_dropout", dropout, 0, 0.999);
  if (dropout != 0)
    throw base::ConfigError("model.adapter.lora_dropout: adapters have no dropout of their own here; set it to 0");
  get.only("use_dora", false);
  get.only("bias", "none");
  get.only("peft_type", "LORA");
  for (const char* key : {"modules_to_save", "rank_pattern", "alpha_pattern", "layers_to_transform", "layers_pattern",
                          "target_parameters", "exclude_modules", "trainable_token_indices", "layer_replication"})
    if (const base::Json* value = get.value_of(key); value && !value->empty())
      get.refuse(key, *value, "null: that is not supported");
  get.ignore({"path", "base_model_name_or_path", "task_type", "inference_mode", "init_lora_weights", "fan_in_fan_out",
              "revision", "auto_mapping", "megatron_config", "megatron_core", "loftq_config", "eva_config", "corda_config",
              "lora_bias", "use_qalora", "qalora_group_size", "peft_version", "runtime_config", "ensure_weight_tying",
              "alora_invocation_tokens", "arrow_config", "lora_ga_config", "use_bdlora", "target_modules_bd_a",
              "target_modules_bd_b", "velora_config", "monteclora_config"});
  const base::Json* targets = get.value_of("target_modules");
  if (!targets || !targets->is_array() || targets->empty())
    get.refuse("target_modules", targets ? *targets : base::Json(), "names of linear modules, for example [q_proj, v_proj]");
  for (const base::Json& target : *targets) {
    if (!target.is_string()) get.refuse("target_modules", *targets, "names of modules");
    adapter.targets.push_back(target);
  }
  get.finish();
  adapter.scale = alpha / (root ? std::sqrt(static_cast<double>(adapter.rank)) : static_cast<double>(adapter.rank));
  return adapter;
}

std::optional<AdapterDifference> adapter_difference(const base::Json& given, const base::Json& held) {
  struct Key {
    const char* name;
    base::Json otherwise;
    bool shapes;
  };
  const Key keys[] = {{"r", 8, true}, {"target_modules", {}, true}, {"lora_alpha", 8, false}, {"use_rslora", false, false}};
  for (const Key& key : keys) {
    auto value = [&](const base::Json& adapter) {
      base::Json found = adapter.value(key.name, key.otherwise);
      if (found.is_array()) std::sort(found.begin(), found.end());  // modules have no order
      return found;
    };
    if (base::Json ours = value(given), theirs = value(held); ours != theirs)
      return AdapterDifference{key.name, std::move(ours), std::move(theirs), key.shapes};
  }
  return std::nullopt;
}

}  // namespace trireme::models
