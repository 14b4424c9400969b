// The loss scale's rule, by injected overflows.
#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "trireme/optim/scaler.h"

namespace trireme::optim {
namespace {

// The scale after each step; an 'x' is a step that overflowed.
std::vector<double> scales(LossScaler& scaler, std::string_view steps) {
  std::vector<double> out;
  for (char step : steps) {
    scaler.update(step == 'x');
    out.push_back(scaler.scale());
  }
  return out;
}

std::vector<double> scales(const config::Amp& amp, std::string_view steps) {
  LossScaler scaler(amp);
  return scales(scaler, steps);
}

TEST(LossScaler, StartsAtTwoToTheSixteenth) {
  LossScaler scaler(config::Amp{});
  EXPECT_EQ(scaler.scale(), 65536);
  EXPECT_FALSE(scaler.exhausted());
}

TEST(LossScaler, FallsFromTheSecondOverflowOn) {
  using Scales = std::vector<double>;
  const config::Amp amp{.initial_scale = 64, .growth_interval = 3};
  // The first overflow is forgiven, clean steps do not forgive another, ...
  EXPECT_EQ(scales(amp, "x.x.x"), Scales({64, 64, 32, 32, 16}));
  // ... but growth does: 3 clean steps in a row.
  EXPECT_EQ(scales(amp, "xx...x.x"), Scales({64, 32, 32, 32, 64, 64, 64, 32}));
  // An overflow starts the row anew.
  EXPECT_EQ(scales(amp, "..x......"), Scales({64, 64, 64, 64, 64, 128, 128, 128, 256}));
  EXPECT_EQ(scales({.initial_scale = 64, .hysteresis = 1}, "xx"), Scales({32, 16}));
  EXPECT_EQ(scales({.initial_scale = 64, .hysteresis = 3}, "x.xx"), Scales({64, 64, 64, 32}));
  EXPECT_EQ(scales({.initial_scale = 64, .growth_factor = 4, .backoff_factor = 0.25, .growth_interval = 1,
                    .hysteresis = 1},
                   "x..x"),
            Scales({16, 64, 256, 64}));
}

TEST(LossScaler, StaysWithinItsBounds) {
  LossScaler scaler(
      {.initial_scale = 4, .growth_interval = 1, .hysteresis = 1, .min_scale = 2, .max_scale = 8});
  EXPECT_EQ(scales(scaler, "...xx"), std::vector<double>({8, 8, 8, 4, 2}));
  EXPECT_TRUE(scaler.exhausted());
  EXPECT_EQ(scales(scaler, "xx."), std::vector<double>({2, 2, 4}));
  EXPECT_FALSE(scaler.exhausted());
}

TEST(LossScaler, AFixedScaleNeverMoves) {
  LossScaler scaler({.loss_scale = 8, .growth_interval = 1, .hysteresis = 1});
  EXPECT_EQ(scales(scaler, ".x.x"), std::vector<double>(4, 8));
  EXPECT_TRUE(scaler.exhausted());
  scaler.set_state({.scale = 2});
  EXPECT_EQ(scaler.scale(), 8);
}

TEST(LossScaler, GoesOnFromItsState) {
  const config::Amp amp{.initial_scale = 64, .growth_interval = 3};
  const std::string_view steps = "x..x...x.xx....x";
  const std::vector<double> whole = scales(amp, steps);
  for (size_t cut = 0; cut <= steps.size(); ++cut) {
    LossScaler before(amp), after(amp);
    std::vector<double> got = scales(before, steps.substr(0, cut));
    after.set_state(before.state());
    const std::vector<double> rest = scales(after, steps.substr(cut));
    got.insert(got.end(), rest.begin(), rest.end());
    EXPECT_EQ(got, whole) << cut;
  }
}

}  // namespace
}  // namespace trireme::optim
