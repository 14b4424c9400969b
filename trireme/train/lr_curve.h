#pragma once
// The learning rate over a run, to look at before it starts.
//
//   std::fputs(draw_lr(config, steps).c_str(), stdout);

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/config/run_config.h"

namespace trireme::train {

struct LrPoint {
  int64_t step;  // from 1, as in metrics.jsonl
  double lr;
};

/// The rates of a run of `steps`: of each step, or of `at_most` (at least 2) evenly spread ones, the
/// first and the last among them. Pure.
std::vector<LrPoint> lr_points(const config::RunConfig& config, int64_t steps, int64_t at_most);

/// The curve as a text of 72 columns: filled up to the largest rate of the steps in each column.
/// Pure.
std::string draw_lr(const config::RunConfig& config, int64_t steps);

}  // namespace trireme::train
