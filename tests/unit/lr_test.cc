// Learning-rate schedules against the published vectors of LiBai's tests and against formulas.
#include "trireme/optim/lr.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <sstream>

#include "trireme/base/error.h"
#include "trireme/train/lr_curve.h"

namespace trireme::optim {
namespace {

using config::Scheduler;

// Base 5, warm-up factor 0.001, 5 warm-up steps: the setting of the published vectors.
constexpr double kBase = 5;
constexpr int64_t kSteps = 30;

Scheduler warm(Scheduler scheduler) {
  scheduler.warmup_iter = 5;
  scheduler.warmup_factor = 0.001;
  return scheduler;
}

double at(const Scheduler& scheduler, int64_t t, int64_t steps = kSteps) {
  return learning_rate(scheduler, kBase, t, steps);
}

double cosine(double done) {
  return 0.5 * (1 + std::cos(std::numbers::pi * done));
}

TEST(LearningRate, PublishedVectors) {
  const double rise[] = {0.005, 1.004, 2.003, 3.002, 4.001};
  const Scheduler constant = warm({.name = "warmup_constant"});
  const Scheduler multistep = warm({.name = "warmup_multistep", .milestones = {{10, 15, 20}}});
  const Scheduler step = warm({.name = "warmup_step", .step_size = 10});
  for (int t = 0; t < 5; ++t)
    for (const Scheduler* scheduler : {&constant, &multistep, &step})
      EXPECT_NEAR(at(*scheduler, t), rise[t], 1e-12) << scheduler->name;
  for (int t = 5; t < 40; ++t) {
    EXPECT_EQ(at(constant, t), 5);
    EXPECT_NEAR(at(multistep, t), t < 10 ? 5 : t < 15 ? 0.5 : t < 20 ? 0.05 : 0.005, 1e-12) << t;
    EXPECT_NEAR(at(step, t), t < 10 ? 5 : t < 20 ? 0.5 : t < 30 ? 0.05 : 0.005, 1e-12) << t;
  }
  const Scheduler scheduler = warm({.name = "warmup_cosine"});
  for (int t = 5; t < 30; ++t)
    EXPECT_NEAR(at(scheduler, t), 2.5 * (1 + std::cos(std::numbers::pi * t / 30)), 1e-12);
}

TEST(LearningRate, TheWarmUpEndsWhereTheShapeIs) {
  Scheduler scheduler = warm({.name = "warmup_cosine"});
  const double top = kBase * cosine(5.0 / 30);
  EXPECT_NEAR(at(scheduler, 2), 0.005 + (top - 0.005) * 2 / 5, 1e-12);
  scheduler.warmup_method = "constant";
  for (int t = 0; t < 5; ++t) EXPECT_EQ(at(scheduler, t), 0.005);
  EXPECT_NEAR(at(scheduler, 5), top, 1e-12);
}

TEST(LearningRate, ShapesThatEndStay) {
  for (int t : {5, 12, 29, 30, 300}) {
    const double done = std::min(t / 30.0, 1.0);
    EXPECT_NEAR(at(warm({.name = "warmup_cosine", .alpha = 0.1}), t),
                kBase * (0.9 * cosine(done) + 0.1), 1e-12);
    EXPECT_NEAR(at(warm({.name = "warmup_cosine_annealing", .eta_min = 0.2}), t),
                0.2 + (kBase - 0.2) * cosine(done), 1e-12);
    EXPECT_NEAR(at(warm({.name = "warmup_linear", .alpha = 0.1}), t), kBase * (1 - 0.9 * done),
                1e-12);
    EXPECT_NEAR(at(warm({.name = "warmup_polynomial", .end_learning_rate = 0.5, .power = 2}), t),
                4.5 * std::pow(1 - done, 2) + 0.5, 1e-12);
  }
  EXPECT_NEAR(at(warm({.name = "warmup_exponential", .gamma = 0.9}), 12), kBase * std::pow(0.9, 12),
              1e-12);
}

TEST(LearningRate, PolynomialCycles) {
  const Scheduler scheduler{.name = "warmup_polynomial", .end_learning_rate = 0, .cycle = true};
  EXPECT_NEAR(at(scheduler, 0, 10), kBase * 0.9, 1e-12);  // OneFlow counts step 0 as 1 here
  EXPECT_NEAR(at(scheduler, 10, 10), 0, 1e-12);
  EXPECT_NEAR(at(scheduler, 11, 10), kBase * (1 - 11.0 / 20), 1e-12);
  EXPECT_NEAR(at(scheduler, 20, 10), 0, 1e-12);
}

TEST(LearningRate, WarmupStableDecay) {
  Scheduler scheduler{.name = "wsd", .warmup_iter = 10, .alpha = 0.1, .decay_ratio = 0.2};
  for (int t : {10, 50, 80}) EXPECT_EQ(at(scheduler, t, 100), kBase);
  EXPECT_NEAR(at(scheduler, 90, 100), kBase * 0.55, 1e-12);
  EXPECT_NEAR(at(scheduler, 100, 100), kBase * 0.1, 1e-12);
  scheduler.decay_method = "cosine";
  EXPECT_NEAR(at(scheduler, 85, 100), kBase * (0.1 + 0.9 * cosine(0.25)), 1e-12);
  scheduler.decay_method = "sqrt";
  EXPECT_NEAR(at(scheduler, 85, 100), kBase * (0.1 + 0.9 * 0.5), 1e-12);
  EXPECT_NEAR(at(scheduler, 5, 100), kBase * (0.001 + 0.999 * 0.5), 1e-12);
  scheduler.warmup_iter = 81;
  EXPECT_THROW(at(scheduler, 0, 100), base::ConfigError);
}

TEST(LearningRate, InverseSquareRoot) {
  const Scheduler scheduler{.name = "inverse_sqrt", .warmup_iter = 16, .warmup_factor = 0};
  EXPECT_NEAR(at(scheduler, 8, 1000), kBase / 2, 1e-12);
  EXPECT_EQ(at(scheduler, 16, 1000), kBase);
  EXPECT_NEAR(at(scheduler, 64, 1000), kBase / 2, 1e-12);
}

// PyTorch's OneCycleLR of T + 1 steps with pct_start = (W + 1) / (T + 1).
TEST(LearningRate, OneCycle) {
  const Scheduler scheduler{
      .name = "one_cycle", .warmup_iter = 8, .warmup_factor = 0.04, .alpha = 4e-6};
  const auto expected = [](double from, double to, double done) {
    return to + (from - to) * cosine(done);
  };
  for (int t = 0; t <= 8; ++t)
    EXPECT_NEAR(at(scheduler, t), expected(0.2, 5, t / 8.0), 1e-12) << t;
  for (int t = 8; t <= 30; ++t)
    EXPECT_NEAR(at(scheduler, t), expected(5, 2e-5, (t - 8) / 22.0), 1e-12) << t;
}

TEST(LearningRate, WarmUpLengthAndRefusals) {
  EXPECT_EQ(warmup_steps({.warmup_ratio = 0.1}, 101), 11);
  EXPECT_EQ(warmup_steps({.warmup_ratio = 0.1, .warmup_iter = 0}, 101), 0);
  EXPECT_EQ(learning_rate({.warmup_iter = 0}, 2, 0, 10), 2);
  EXPECT_THROW(warmup_steps({.warmup_iter = 12}, 11), base::ConfigError);
  try {
    at({.name = "cyclic"}, 0);
    FAIL() << "an unknown name went through";
  } catch (const base::ConfigError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("warmup_multistep"),
                                             testing::HasSubstr("one_cycle")));
  }
  EXPECT_THROW(at({.name = "warmup_step"}, 0), base::ConfigError);
}

TEST(LearningRate, CurveAsPointsAndAsText) {
  config::RunConfig config;
  config.train.scheduler = {.name = "warmup_linear", .warmup_iter = 10};
  const auto all = train::lr_points(config, 40, 1000);
  ASSERT_EQ(all.size(), 40u);
  EXPECT_EQ(all[3].step, 4);
  EXPECT_EQ(all[3].lr, learning_rate(config.train.scheduler, config.optim.lr, 3, 40));
  const auto some = train::lr_points(config, 12345, 7);
  ASSERT_EQ(some.size(), 7u);
  EXPECT_EQ(some.front().step, 1);
  EXPECT_EQ(some.back().step, 12345);
  EXPECT_EQ(train::lr_points(config, 10, 1000).size(), 10u);
  for (int64_t steps : {int64_t{10}, int64_t{100}, int64_t{1} << 40}) {
    std::istringstream text(train::draw_lr(config, steps));
    std::string line;
    size_t lines = 0;
    for (; std::getline(text, line); ++lines) {
      const auto continued = [](char c) { return (c & 0xC0) == 0x80; };  // of a UTF-8 character
      EXPECT_LE(line.size() - static_cast<size_t>(std::ranges::count_if(line, continued)), 72u);
    }
    EXPECT_EQ(lines, 15u);
  }
}

}  // namespace
}  // namespace trireme::optim
