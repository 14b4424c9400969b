#include "trireme/optim/groups.h"

#include <fnmatch.h>

#include <algorithm>
#include <cctype>

#include "trireme/base/error.h"

namespace trireme::optim {
namespace {

const config::ParamGroup* group_of(const std::string& parameter, const config::Optim& options) {
  for (const config::ParamGroup& group : options.groups)
    if (matches(group.pattern, parameter)) return &group;
  return nullptr;
}

}  // namespace

bool matches(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

double weight_decay_of(const std::string& parameter, const config::Optim& options) {
  const config::ParamGroup* group = group_of(parameter, options);
  if (group && group->weight_decay) return *group->weight_decay;
  const size_t last = parameter.rfind('.');
  const std::string own = last == std::string::npos ? parameter : parameter.substr(last + 1);
  std::string module = last == std::string::npos ? "" : parameter.substr(0, last);
  module = module.substr(module.rfind('.') + 1);  // npos + 1 is 0: the whole
  std::ranges::transform(module, module.begin(), [](unsigned char c) { return std::tolower(c); });
  if (module == "ln" || module.starts_with("ln_") || module.find("norm") != std::string::npos)
    return options.weight_decay_norm;
  return own == "bias" ? options.weight_decay_bias : options.weight_decay;
}

double lr_scale_of(const std::string& parameter, const config::Optim& options) {
  const config::ParamGroup* group = group_of(parameter, options);
  return group ? group->lr_scale : 1;
}

bool is_frozen(const layout::ParamSpec& parameter, const config::Optim& options) {
  const config::ParamGroup* group = group_of(parameter.name, options);
  return parameter.kind == layout::ParamKind::buffer || (group && group->freeze);
}

void check_groups(const std::vector<layout::ParamSpec>& model, const config::Optim& options) {
  for (const config::ParamGroup& group : options.groups) {
    if (std::ranges::none_of(model, [&](const auto& spec) { return &group == group_of(spec.name, options); }))
      throw base::ConfigError(fmt::format(
          "optim.groups: '{}' matches no parameter of the model that an earlier group leaves; "
          "`trireme inspect` lists their names, for example {}",
          group.pattern, model.empty() ? "none" : model.front().name));
  }
  if (std::ranges::all_of(model, [&](const auto& spec) { return is_frozen(spec, options); }))
    throw base::ConfigError("optim.groups: every parameter is frozen, so nothing would be trained");
}

void freeze(nn::ParamStore& store, const config::Optim& options) {
  base::check(store.buckets().empty(), "parameters are frozen before the store is materialized");
  for (nn::Param* param : store.params()) param->frozen = is_frozen(param->spec, options);
}

}  // namespace trireme::optim
