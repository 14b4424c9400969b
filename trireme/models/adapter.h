#pragma once
// The adapter of a model's configuration (`model.adapter`) or of PEFT's adapter_config.json; both have PEFT's keys.

#include "trireme/base/json.h"
#include "trireme/nn/low_rank.h"

namespace trireme::models {

/// Reads r, lora_alpha, target_modules and use_rslora of `tree["adapter"]`; none where it is absent or null. ConfigError: an
/// unknown key, a value out of range, and what is not supported (DoRA, dropout, biases, modules kept beside).
nn::LowRank read_adapter(const base::Json& tree);

}  // namespace trireme::models
