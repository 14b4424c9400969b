#pragma once
// What `trireme preprocess` and `trireme data merge` tell while they work and at the end, as text: of
// its own, without a terminal and without a clock, so that tests can read it.

#include <functional>
#include <string>
#include <string_view>

#include "trireme/base/json.h"
#include "trireme/data/preprocess.h"

namespace trireme::tools {

/// A bar, drawn at most ten times a second, on a terminal; elsewhere (a log, a batch system) a
/// plain line every ten seconds.
///
///   ProgressReport report(isatty(2), seconds, [](std::string_view text) { fmt::print(stderr, "{}",
///   text); }); options.progress = [&](const data::PreprocessProgress& p) { report.show(p); };
class ProgressReport {
 public:
  /// `seconds`: a clock; `put`: takes the text, on a terminal with its control codes; `doing`: what
  /// the lines of a log begin with.
  ProgressReport(bool terminal, std::function<double()> seconds,
                 std::function<void(std::string_view)> put, std::string doing = "preprocess")
      : terminal_(terminal), seconds_(std::move(seconds)), put_(std::move(put)), doing_(std::move(doing)) {}
  /// Wipes the bar.
  ~ProgressReport();
  ProgressReport(const ProgressReport&) = delete;
  ProgressReport& operator=(const ProgressReport&) = delete;
  /// Documents below 0 are not counted, and not shown.
  void show(const data::PreprocessProgress& progress);

 private:
  bool terminal_, drawn_ = false;
  std::function<double()> seconds_;
  std::function<void(std::string_view)> put_;
  std::string doing_;
  int64_t first_bytes_ = -1;  // what an earlier run had done is not this run's speed
  double start_ = 0, last_ = 0;
};

/// What was made: documents, tokens, bytes per token, what was left out and why, each output.
std::string summary_text(const data::PreprocessSummary& summary, double seconds);
base::Json summary_json(const data::PreprocessSummary& summary, double seconds);

}  // namespace trireme::tools
