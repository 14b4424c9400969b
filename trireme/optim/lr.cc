#include "trireme/optim/lr.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "trireme/base/error.h"

namespace trireme::optim {
namespace {

// From 1 to 0 along half a cosine as `done` goes from 0 to 1.
double falling_cosine(double done) {
  return 0.5 * (1 + std::cos(std::numbers::pi * done));
}

// The share of [begin, end) that lies before t.
double share(int64_t t, int64_t begin, int64_t end) {
  if (t >= end) return 1;
  return t <= begin ? 0 : static_cast<double>(t - begin) / static_cast<double>(end - begin);
}

double between(double from, double to, double remaining) {
  return to + (from - to) * remaining;
}

double warmup_constant(const Curve& curve, int64_t) {
  return curve.base;
}

double warmup_linear(const Curve& curve, int64_t t) {
  return between(curve.base, curve.keys.alpha * curve.base, 1 - share(t, 0, curve.total));
}

double warmup_cosine(const Curve& curve, int64_t t) {
  return between(curve.base, curve.keys.alpha * curve.base,
                 falling_cosine(share(t, 0, curve.total)));
}

double warmup_cosine_annealing(const Curve& curve, int64_t t) {
  return between(curve.base, curve.keys.eta_min, falling_cosine(share(t, 0, curve.total)));
}

double warmup_step(const Curve& curve, int64_t t) {
  return curve.base *
         std::pow(curve.keys.gamma.value_or(0.1), static_cast<double>(t / *curve.keys.step_size));
}

double warmup_multistep(const Curve& curve, int64_t t) {
  const auto passed =
      std::ranges::count_if(*curve.keys.milestones, [&](int64_t at) { return at <= t; });
  return curve.base * std::pow(curve.keys.gamma.value_or(0.1), static_cast<double>(passed));
}

double warmup_exponential(const Curve& curve, int64_t t) {
  return curve.base * std::pow(*curve.keys.gamma, static_cast<double>(t));
}

double warmup_polynomial(const Curve& curve, int64_t t) {
  double length = static_cast<double>(curve.total);
  double now = static_cast<double>(t);
  if (curve.keys.cycle) {
    now = std::max(now, 1.0);
    length *= std::ceil(now / length);
  }
  return between(curve.base, curve.keys.end_learning_rate,
                 std::pow(1 - std::min(now / length, 1.0), curve.keys.power));
}

int64_t decay_steps(const Curve& curve) {
  return static_cast<int64_t>(
      std::ceil(static_cast<double>(curve.total) * curve.keys.decay_ratio - 1e-6));
}

double wsd(const Curve& curve, int64_t t) {
  const int64_t decay = decay_steps(curve);
  if (curve.warmup + decay > curve.total)
    throw base::ConfigError(
        fmt::format("train.scheduler: a warm-up of {} steps and a decay of {} do not fit a run of "
                    "{}; lower warmup_iter, warmup_ratio or decay_ratio",
                    curve.warmup, decay, curve.total));
  if (t < curve.total - decay) return curve.base;
  const double done = share(t, curve.total - decay, curve.total);
  const double remaining = curve.keys.decay_method == "linear"   ? 1 - done
                           : curve.keys.decay_method == "cosine" ? falling_cosine(done)
                                                                 : 1 - std::sqrt(done);
  return between(curve.base, curve.keys.alpha * curve.base, remaining);
}

double inverse_sqrt(const Curve& curve, int64_t t) {
  const auto warmup = static_cast<double>(std::max<int64_t>(curve.warmup, 1));
  return curve.base * std::sqrt(warmup / std::max(static_cast<double>(t), warmup));
}

double one_cycle(const Curve& curve, int64_t t) {
  if (t < curve.warmup)
    return between(curve.keys.warmup_factor * curve.base, curve.base,
                   falling_cosine(share(t, 0, curve.warmup)));
  return between(curve.base, curve.keys.alpha * curve.base,
                 falling_cosine(share(t, curve.warmup, curve.total)));
}

}  // namespace

base::Registry<Shape>& shapes() {
  static base::Registry<Shape> all("train.scheduler.name",
                                   {{"warmup_constant", {warmup_constant}},
                                    {"warmup_linear", {warmup_linear}},
                                    {"warmup_cosine", {warmup_cosine}},
                                    {"warmup_cosine_annealing", {warmup_cosine_annealing}},
                                    {"warmup_step", {warmup_step}},
                                    {"warmup_multistep", {warmup_multistep}},
                                    {"warmup_exponential", {warmup_exponential}},
                                    {"warmup_polynomial", {warmup_polynomial}},
                                    {"wsd", {wsd}},
                                    {"inverse_sqrt", {inverse_sqrt}},
                                    {"one_cycle", {one_cycle, true}}});
  return all;
}

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
  const Shape& shape = shapes().get(scheduler.name);
  config::check_scheduler(scheduler);
  const Curve curve{scheduler, base, warmup_steps(scheduler, total_steps), total_steps};
  if (step >= curve.warmup || shape.has_warmup) return shape.at(curve, step);
  const double start = base * scheduler.warmup_factor;
  if (scheduler.warmup_method == "constant") return start;
  return start + (shape.at(curve, curve.warmup) - start) * static_cast<double>(step) /
                     static_cast<double>(curve.warmup);
}

}  // namespace trireme::optim
