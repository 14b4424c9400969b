#pragma once
// Rope: rotary positions as Hugging Face's configurations say them: `rope_parameters` (transformers 5), or `rope_theta` with
// `rope_scaling` (before).

#include "trireme/models/family.h"
#include "trireme/nn/rotary.h"

namespace trireme::models {

struct RopeDefaults {
  int64_t head_size = 0, max_positions = 0;
  double theta = 10000, share = 1;  // of a head's features that are rotated
  const char* theta_key = "rope_theta";
  const char* share_key = "partial_rotary_factor";
};

/// ConfigError for an unknown type or key, or a type that lacks its factor.
nn::RotaryOptions read_rope(ConfigReader& get, const RopeDefaults& defaults);

/// Gemma 3's two: of layers without a window and of those with one.
std::vector<nn::RotaryOptions> read_ropes_by_layer_type(ConfigReader& get, const RopeDefaults& defaults);

}  // namespace trireme::models
