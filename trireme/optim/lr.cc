#include "trireme/optim/lr.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "trireme/base/error.h"

namespace trireme::optim {

int64_t warmup_steps(const config::Scheduler& scheduler, int64_t total_steps) {
  int64_t steps = scheduler.warmup_iter.value_or(
      static_cast<int64_t>(std::ceil(static_cast<double>(total_steps) * scheduler.warmup_ratio)));
  if (steps < 0 || steps > total_steps)
    throw base::ConfigError(
        fmt::format("a warm-up of {} steps does not fit a run of {}; lower "
                    "train.scheduler.warmup_iter or warmup_ratio",
                    steps, total_steps));
  return steps;
}

double learning_rate(const config::Scheduler& scheduler, double base, int64_t step,
                     int64_t total_steps) {
  const double alpha = scheduler.alpha;
  const auto shape = [&](int64_t t) {
    double done = total_steps > 0 ? static_cast<double>(std::min(t, total_steps)) /
                                        static_cast<double>(total_steps)
                                  : 0;
    if (scheduler.name == "warmup_cosine")
      return base * ((1 - alpha) * 0.5 * (1 + std::cos(std::numbers::pi * done)) + alpha);
    if (scheduler.name == "warmup_linear") return base * (1 - (1 - alpha) * done);
    if (scheduler.name == "warmup_constant") return base;
    throw base::ConfigError(fmt::format(
        "train.scheduler.name '{}' is unknown; use warmup_cosine, warmup_linear or warmup_constant",
        scheduler.name));
  };
  const int64_t warmup = warmup_steps(scheduler, total_steps);
  if (step >= warmup) return shape(step);
  const double start = base * scheduler.warmup_factor;
  return start + (shape(warmup) - start) * static_cast<double>(step) / static_cast<double>(warmup);
}

}  // namespace trireme::optim
