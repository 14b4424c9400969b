#include "trireme/train/hook.h"

namespace trireme::train {

base::Registry<MakeHook>& hooks() {
  static base::Registry<MakeHook> all("train.hooks");
  return all;
}

Hooks::Hooks(const config::RunConfig& config) {
  for (const std::string& name : config.train.hooks) hooks_.push_back(hooks().get(name)(config));
}

}  // namespace trireme::train
