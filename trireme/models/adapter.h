#pragma once
// The adapter of a model's configuration (`model.adapter`) or of PEFT's adapter_config.json; both have PEFT's keys.

#include <optional>
#include <string>

#include "trireme/base/json.h"
#include "trireme/nn/low_rank.h"

namespace trireme::models {

/// Reads r, lora_alpha, target_modules, rank_pattern, alpha_pattern, lora_dropout, use_rslora and use_dora of
/// `tree["adapter"]`; none where it is absent or null. ConfigError: an unknown key, a value out of range, and what is not
/// supported (biases, modules kept beside).
nn::LowRank read_adapter(const base::Json& tree);

/// A key in which two adapters differ, and what each has there.
struct AdapterDifference {
  std::string key;
  base::Json given, held;
  bool shapes = false;  // which matrices there are, or their shape; else what they count
};
/// The first difference in what the matrices are or mean, those of shape first; nothing where one fits the other's place.
std::optional<AdapterDifference> adapter_difference(const base::Json& given, const base::Json& held);

}  // namespace trireme::models
