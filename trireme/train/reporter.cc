#include "trireme/train/reporter.h"

namespace trireme::train {

Reporter::Reporter(bool reports, const config::Train& config, int64_t first_step, int64_t steps, base::Logger& log) {
  if (!reports) return;
  parts_.emplace(config, first_step, steps, log);
  if (auto port = config.telemetry.prometheus_port) parts_->server.emplace(*port);
}

void Reporter::step(const StepMetrics& metrics) {
  if (!parts_) return;
  parts_->metrics.write(metrics);
  if (parts_->server) parts_->server->publish(to_prometheus(metrics));
  parts_->progress.step(metrics);
}

void Reporter::evaluated(const EvalMetrics& metrics) {
  if (!parts_) return;
  parts_->metrics.write(metrics);
  parts_->progress.evaluated(metrics);
}

void Reporter::message(const std::string& line) {
  if (parts_ && !line.empty()) parts_->progress.message(line);
}

}  // namespace trireme::train
