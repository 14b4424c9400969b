#pragma once
// LowRank: an adapter beside chosen linear layers (LoRA, Hu et al., 2021): y = x W + scale * (x A) B, with PEFT's names
// (`MODULE.lora_A.weight` [rank, in], `MODULE.lora_B.weight` [out, rank]) and initial values: B is zero, so that training
// begins from the model as it is. With magnitudes (DoRA, Liu et al., 2024) each output is scaled to a length of its own,
// `MODULE.lora_magnitude_vector` [out], which begins as that of the weight's row. Which modules and how large is a value of
// the build; layers know nothing of it.

#include <string>
#include <utility>
#include <vector>

#include "trireme/comm/comm.h"
#include "trireme/layout/param_spec.h"

namespace trireme::nn {

class ParamStore;

/// Does `target` name `module`: wholly, or its end from a dot on? PEFT's rule for lists of modules.
bool names_module(const std::string& target, const std::string& module);
/// Does the regular expression `pattern` match `module`, wholly or its end from a dot on? PEFT's rule for keys of
/// rank_pattern and alpha_pattern. ConfigError where it is none.
bool matches_module(const std::string& pattern, const std::string& module);

struct LowRank {
  template <class T>
  using Patterns = std::vector<std::pair<std::string, T>>;  // the first that matches a module counts

  int64_t rank = 0;  // 0: there is none
  double alpha = 8;
  bool root = false;         // the scale is alpha / sqrt(rank) (Kalajdzievski, 2023), else alpha / rank
  bool magnitudes = false;   // DoRA
  double dropout = 0;        // of what A is applied to
  std::vector<std::string> targets = {};  // modules: whole names, or their ends from a dot on
  Patterns<int64_t> ranks = {};           // of modules that have another one
  Patterns<double> alphas = {};

  bool adapts(const std::string& module) const;
  int64_t rank_of(const std::string& module) const;
  double scale_of(const std::string& module) const;
};

/// Is it a parameter of an adapter?
bool is_low_rank(const std::string& parameter);

/// Fills the magnitudes among `specs` (all parameters of the model: Init::lengths) with the lengths of their weights' rows.
/// Collective over the world.
void begin_magnitudes(const ParamStore& store, const layout::Coord& coord, const std::vector<layout::ParamSpec>& specs,
                      const comm::Comm& world);

}  // namespace trireme::nn
