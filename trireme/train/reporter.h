#pragma once
// Reporter: all that a run shows and writes about itself while it goes on: the bar, metrics.jsonl and
// its companions, the Prometheus port. Rank 0 reports, on other ranks it does nothing.

#include <optional>

#include "trireme/config/run_config.h"
#include "trireme/train/metrics_server.h"
#include "trireme/train/progress.h"

namespace trireme::train {

class Reporter {
 public:
  /// `first_step`: steps done before (of a resumed run), out of `steps`. `log` outlives it.
  Reporter(bool reports, const config::Train& config, int64_t first_step, int64_t steps, base::Logger& log);
  void step(const StepMetrics& metrics);
  void evaluated(const EvalMetrics& metrics);
  /// Nothing where the line is empty.
  void message(const std::string& line);

 private:
  struct Parts {
    Parts(const config::Train& config, int64_t first_step, int64_t steps, base::Logger& log)
        : metrics(config.output_dir, first_step, config.telemetry.csv),
          progress(steps, first_step, config.log_period, log) {}
    MetricsWriter metrics;
    Progress progress;
    std::optional<MetricsServer> server;
  };
  std::optional<Parts> parts_;
};

}  // namespace trireme::train
