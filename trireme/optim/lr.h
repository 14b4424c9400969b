#pragma once
// Learning rate: a pure function of the step, so that a resumed run and any layout follow the same
// curve. A schedule is a shape after a warm-up; see learning_rate for all of them.

#include <cstdint>
#include <functional>

#include "trireme/base/registry.h"
#include "trireme/config/run_config.h"

namespace trireme::optim {

/// What a schedule knows of the run.
struct Curve {
  const config::Scheduler& keys;
  double base;            // the peak
  int64_t warmup, total;  // steps
};
/// A schedule's rate at step t, from the end of the warm-up on; or from the start, where it has a
/// rise of its own.
struct Shape {
  std::function<double(const Curve& curve, int64_t t)> at;
  bool has_warmup = false;
};
/// All schedules by the name that train.scheduler.name gives them.
base::Registry<Shape>& shapes();

/// Steps of the warm-up: warmup_iter, or warmup_ratio of the run, rounded up.
int64_t warmup_steps(const config::Scheduler& scheduler, int64_t total_steps);

/// The rate of step t (from 0) of a run of T = `total_steps`, whose peak is `base`.
///
/// The warm-up of W steps rises linearly from warmup_factor * base to where the shape is at W, or
/// stays at warmup_factor * base (as OneFlow's schedulers do; LiBai's Warmup*LR are these). Shapes
/// count from step 0, not from the end of the warm-up:
///   warmup_constant          base
///   warmup_linear            from base to alpha * base at T
///   warmup_cosine            half a cosine from base to alpha * base at T
///   warmup_cosine_annealing  half a cosine from base to eta_min at T
///   warmup_step              base * gamma ^ floor(t / step_size)
///   warmup_multistep         base * gamma ^ (milestones at or before t)
///   warmup_exponential       base * gamma ^ t
///   warmup_polynomial        (base - end) * (1 - t / T) ^ power + end; with `cycle`, T is the next
///                            multiple of T
///   wsd                      base, and over the last decay_ratio of the run down to alpha * base
///                            (Hu et al., MiniCPM, 2024)
///   inverse_sqrt             base * sqrt(W / t) from W on (Vaswani et al., 2017)
///   one_cycle                half a cosine up to base at W, another one down to alpha * base at T
///                            (Smith and Topin, 2018)
/// Those that end at T stay there. ConfigError for an unknown name, a key that the shape lacks, and
/// a warm-up (with wsd: and a decay) that is longer than the run.
double learning_rate(const config::Scheduler& scheduler, double base, int64_t step,
                     int64_t total_steps);

}  // namespace trireme::optim
