#pragma once
// Progress: what a person sees of a run. On a terminal a bar that redraws in place; elsewhere a
// line of the log every few steps. The log file gets those lines in both cases.
//
//   Progress progress(steps, first_step, log_period, logger);
//   progress.step(metrics);                        // after every step
//   progress.message("checkpoint step_00000100");  // a line above the bar

#include <chrono>
#include <cstdint>
#include <string>

#include "trireme/base/log.h"
#include "trireme/train/metrics.h"

namespace trireme::train {

/// "0:42", "12:05", "3:07:00", "2d 4:10:00".
std::string format_duration(double seconds);
/// "950", "12.3k", "4.56M".
std::string format_count(double value);

/// The bar's one line, at most `width` columns wide: the bar itself yields first.
std::string render_bar(const StepMetrics& metrics, int64_t steps, double eta_seconds, int width,
                       bool color);
/// The same facts as a line of the log, with learning rate and gradient norm.
std::string render_line(const StepMetrics& metrics, int64_t steps, double eta_seconds);

class Progress {
 public:
  /// `first_step`: steps done before (of a resumed run).
  Progress(int64_t steps, int64_t first_step, int64_t log_period, base::Logger& logger);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void step(const StepMetrics& metrics);
  void evaluated(const EvalMetrics& metrics);
  /// A line of the log that does not tear the bar.
  void message(const std::string& line);

 private:
  double eta(const StepMetrics& metrics);
  void draw();
  void clear();

  int64_t steps_, first_step_, log_period_;
  base::Logger& logger_;
  bool terminal_, color_;
  std::string bar_;          // as it stands on the terminal; empty: none
  double mean_seconds_ = 0;  // of a step, recent ones weighing more
  std::chrono::steady_clock::time_point drawn_{};
};

}  // namespace trireme::train
