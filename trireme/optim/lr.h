#pragma once
// Learning rate: a pure function of the step, so that a resumed run and any layout follow the same
// curve.

#include <cstdint>

#include "trireme/config/run_config.h"

namespace trireme::optim {

/// Steps of the warm-up: warmup_iter, or warmup_ratio of the run, rounded up.
int64_t warmup_steps(const config::Scheduler& scheduler, int64_t total_steps);

/// The rate of step `step` (from 0) of a run of `total_steps`, whose peak is `base`. The shape
/// after the warm-up counts from step 0 and stays at alpha * base from total_steps on; the warm-up
/// rises linearly from warmup_factor * base to where the shape is when it ends (as in OneFlow's
/// schedulers). ConfigError for an unknown name or a warm-up that is longer than the run.
double learning_rate(const config::Scheduler& scheduler, double base, int64_t step,
                     int64_t total_steps);

}  // namespace trireme::optim
