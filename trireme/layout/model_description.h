#pragma once
// ModelDescription: what `describe` mode records of a model without any memory. Planner, checkpoint tools
// and `inspect` work on it.

#include <string>
#include <vector>

#include "trireme/layout/param_spec.h"

namespace trireme::layout {

struct LayerDescription {
  std::string name;
  bool block = false;   // one of the repeated blocks that distribute_layers counts
  bool source = false;  // of an encoder that a decoder follows
  double flops = 0;     // forward, one micro-batch row of seq_length tokens
  double activation_bytes = 0;
  std::vector<std::string> parameters;
};

struct ModelDescription {
  std::vector<LayerDescription> layers;  // chain order
  std::vector<ParamSpec> parameters;     // ordered by name; stages and Sbp filled in
  std::vector<int> layers_per_stage;
};

}  // namespace trireme::layout
