#pragma once
// Hook: a user's own code at fixed moments of a run, on every rank. Hooks see the run and may change
// it as long as all ranks do the same; collective work in them must be done by all.
//
//   class Watch : public Hook { void after_step(const Moment& at, const StepMetrics& step) override; };
//   TRIREME_PLUGIN() { train::hooks().add("watch", [](const auto&) { return std::make_unique<Watch>(); }); }
//   train: {hooks: [watch]}

#include <functional>
#include <memory>

#include "trireme/base/registry.h"
#include "trireme/optim/sharded_optimizer.h"
#include "trireme/train/assembly.h"
#include "trireme/train/metrics.h"

namespace trireme::train {

/// Where a run stands when a hook is called.
struct Moment {
  const config::RunConfig& config;  // resolved
  Assembly& assembly;
  optim::ShardedOptimizer& optimizer;
  int64_t step = 0;  // steps done
};

class Hook {
 public:
  virtual ~Hook() = default;
  virtual void before_train(const Moment&) {}
  virtual void after_train(const Moment&) {}
  virtual void before_step(const Moment&) {}
  virtual void after_step(const Moment&, const StepMetrics&) {}
  virtual void before_evaluation(const Moment&) {}
  virtual void after_evaluation(const Moment&, const EvalMetrics&) {}
};

/// All hooks by the name that train.hooks gives them.
using MakeHook = std::function<std::unique_ptr<Hook>(const config::RunConfig& config)>;
base::Registry<MakeHook>& hooks();

/// The hooks of a run, in the order of its configuration. ConfigError for an unknown name.
class Hooks {
 public:
  explicit Hooks(const config::RunConfig& config);
  /// Calls the same function of each: hooks.call(&Hook::after_step, moment, metrics).
  template <class... Parameters, class... Arguments>
  void call(void (Hook::*function)(Parameters...), const Arguments&... arguments) {
    for (const std::unique_ptr<Hook>& hook : hooks_) (hook.get()->*function)(arguments...);
  }

 private:
  std::vector<std::unique_ptr<Hook>> hooks_;
};

}  // namespace trireme::train
