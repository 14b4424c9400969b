#include "trireme/nn/low_rank.h"

#include <algorithm>

namespace trireme::nn {

bool names_module(const std::string& target, const std::string& module) {
  return module == target || module.ends_with("." + target);
}

bool LowRank::adapts(const std::string& module) const {
  return rank > 0 && std::ranges::any_of(targets, [&](const std::string& target) { return names_module(target, module); });
}

bool is_low_rank(const std::string& parameter) {
  return parameter.ends_with(".lora_A.weight") || parameter.ends_with(".lora_B.weight");
}

}  // namespace trireme::nn
