#pragma once
// Parameter groups: what the configuration says of a parameter by its name. Patterns are those of
// file names (*, ?, [ab]) on the whole name; the first group that matches counts.
//
//   optim.groups: [{pattern: "*.h.0.*", freeze: true}, {pattern: "*wte*", lr_scale: 0.1}]

#include <string>

#include "trireme/config/run_config.h"
#include "trireme/layout/param_spec.h"
#include "trireme/nn/param_store.h"

namespace trireme::optim {

/// Does the pattern match the whole name?
bool matches(const std::string& pattern, const std::string& name);

/// The decay of a parameter: its group's, else weight_decay_norm for weights and biases of
/// normalisations (modules named ln_*, or with "norm" in their name), weight_decay_bias for other
/// biases, else weight_decay.
double weight_decay_of(const std::string& parameter, const config::Optim& options);
/// Factor of its learning rate.
double lr_scale_of(const std::string& parameter, const config::Optim& options);
/// A buffer always is.
bool is_frozen(const layout::ParamSpec& parameter, const config::Optim& options);

/// ConfigError for a pattern that no parameter of the model matches, and where nothing is left to
/// train. `model`: all parameters, of every stage.
void check_groups(const std::vector<layout::ParamSpec>& model, const config::Optim& options);
/// Marks the frozen parameters of a store that has not been materialized.
void freeze(nn::ParamStore& store, const config::Optim& options);

}  // namespace trireme::optim
