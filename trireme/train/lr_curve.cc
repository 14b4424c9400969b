#include "trireme/train/lr_curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "trireme/optim/lr.h"

namespace trireme::train {
namespace {

constexpr int kMargin = 11, kColumns = 61, kRows = 12;  // 72 columns in all

double lr_of(const config::RunConfig& config, int64_t index, int64_t steps) {
  return optim::learning_rate(config.train.scheduler, config.optim.lr, index, steps);
}

// The largest rate of each column's steps; short runs draw a step in several columns.
std::array<double, kColumns> column_rates(const config::RunConfig& config, int64_t steps) {
  constexpr int64_t kSamples = 64;  // of a column
  std::array<double, kColumns> rates{};
  for (int64_t c = 0; c < kColumns; ++c) {
    const int64_t begin = std::min(c * steps / kColumns, steps - 1);
    const int64_t end = std::max(begin + 1, (c + 1) * steps / kColumns);
    const int64_t stride = std::max<int64_t>(1, (end - begin) / kSamples);
    for (int64_t i = begin; i < end; i += stride)
      rates[static_cast<size_t>(c)] =
          std::max(rates[static_cast<size_t>(c)], lr_of(config, i, steps));
  }
  return rates;
}

}  // namespace

std::vector<LrPoint> lr_points(const config::RunConfig& config, int64_t steps, int64_t at_most) {
  std::vector<LrPoint> points;
  const int64_t count = std::min(steps, at_most);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t index = count == steps ? i : i * (steps - 1) / (count - 1);
    points.push_back({index + 1, lr_of(config, index, steps)});
  }
  return points;
}

std::string draw_lr(const config::RunConfig& config, int64_t steps) {
  constexpr std::array<std::string_view, 9> kBlocks = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const auto rates = column_rates(config, steps);
  const double top = *std::ranges::max_element(rates);
  std::string text =
      fmt::format("learning rate, {}, {} steps\n", config.train.scheduler.name, steps);
  for (int row = kRows - 1; row >= 0; --row) {
    const bool labelled = row == kRows - 1 || row == kRows / 2 - 1;
    std::string line = labelled ? fmt::format("{:>9.3g} ┤", top * (row + 1) / kRows)
                                : fmt::format("{:>9} │", "");
    for (double rate : rates) {
      const double eighths = top > 0 ? rate / top * 8 * kRows - 8 * row : 0;
      line += kBlocks[static_cast<size_t>(std::clamp(std::lround(eighths), 0L, 8L))];
    }
    text += line + "\n";
  }
  std::string axis;
  for (int c = 0; c < kColumns; ++c) axis += "─";
  const std::string last = std::to_string(steps);
  return text + fmt::format("{:>9} └{}\n{:>{}}{:>{}}\n", "0", axis, "1", kMargin + 1, last,
                            kColumns - 1);
}

}  // namespace trireme::train
