#pragma once
// LowRank: an adapter beside chosen linear layers (LoRA, Hu et al., 2021): y = x W + scale * (x A) B, with PEFT's names
// (`MODULE.lora_A.weight` [rank, in], `MODULE.lora_B.weight` [out, rank]) and initial values: B is zero, so that training
// begins from the model as it is. Which modules and how large is a value of the build; layers know nothing of it.

#include <string>
#include <vector>

#include "trireme/layout/param_spec.h"

namespace trireme::nn {

/// Does `target` name `module`: wholly, or its end from a dot on? PEFT's rule.
bool names_module(const std::string& target, const std::string& module);

struct LowRank {
  int64_t rank = 0;  // 0: there is none
  double scale = 1;  // alpha / rank
  std::vector<std::string> targets = {};  // modules: whole names, or their ends from a dot on

  bool adapts(const std::string& module) const;
};

/// Is it a parameter of an adapter?
bool is_low_rank(const std::string& parameter);

}  // namespace trireme::nn
