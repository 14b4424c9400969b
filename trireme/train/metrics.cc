#include "trireme/train/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <filesystem>

#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/base/json.h"

namespace trireme::train {
namespace {

std::string digits(double value) {
  if (std::isnan(value)) return "\"nan\"";
  if (std::isinf(value)) return value < 0 ? "\"-inf\"" : "\"inf\"";
  return fmt::format("{}", value);
}

std::string digits(const std::optional<double>& value) {
  return value ? digits(*value) : "null";
}

/// The lines of `text` whose step is at most `last_step`.
std::string lines_until(std::string_view text, int64_t last_step, const std::string& path) {
  std::string kept;
  int64_t number = 1;
  for (size_t begin = 0; begin < text.size(); ++number) {
    size_t end = text.find('\n', begin);
    if (end == std::string_view::npos) break;  // cut off by a crash
    std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    std::string place = fmt::format("{}:{}", path, number);
    base::Json json = base::parse_json(line, place);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) {
      throw base::FormatError(
          fmt::format("{}: expected a line of metrics with an integer \"step\"; repair the file "
                      "or move it away",
                      place));
    }
    if (json["step"].get<int64_t>() <= last_step) kept += fmt::format("{}\n", line);
  }
  return kept;
}

}  // namespace

std::string to_json_line(const StepMetrics& m) {
  return fmt::format(
      R"({{"step": {}, "loss": {}, "lr": {}, "grad_norm": {}, "loss_scale": {}, "tokens": {}, "samples": {}, )"
      R"("step_seconds": {}, "tokens_per_second": {}, "model_flops_utilization": {}, "memory": {}}})",
      m.step, digits(m.loss), digits(m.lr), digits(m.grad_norm), digits(m.loss_scale), m.tokens,
      m.samples, digits(m.step_seconds), digits(m.tokens_per_second),
      digits(m.model_flops_utilization), m.memory);
}

std::string to_json_line(const EvalMetrics& m) {
  return fmt::format(
      R"({{"step": {}, "eval_loss": {}, "eval_perplexity": {}, "tokens": {}, "seconds": {}}})",
      m.step, digits(m.eval_loss), digits(std::exp(m.eval_loss)), m.tokens, digits(m.seconds));
}

MetricsWriter::MetricsWriter(const std::string& directory, int64_t resumed_step)
    : path_(directory + "/metrics.jsonl"), events_(directory) {
  if (std::filesystem::exists(path_)) {
    std::string kept =
        resumed_step > 0 ? lines_until(base::read_file(path_), resumed_step, path_) : "";
    base::write_file_atomic(path_, kept);
  }
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0) throw base::IoError(path_, errno, "opening");
}

MetricsWriter::~MetricsWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void MetricsWriter::write(const StepMetrics& m) {
  append(to_json_line(m));
  events_.scalars(m.step, {{"train/loss", m.loss},
                           {"train/lr", m.lr},
                           {"train/grad_norm", m.grad_norm},
                           {"speed/tokens_per_second", m.tokens_per_second},
                           {"speed/step_seconds", m.step_seconds},
                           {"memory/peak_bytes", static_cast<double>(m.memory)}});
  if (m.loss_scale) events_.scalars(m.step, {{"train/loss_scale", *m.loss_scale}});
  if (m.model_flops_utilization) {
    events_.scalars(m.step, {{"speed/model_flops_utilization", *m.model_flops_utilization}});
  }
}

void MetricsWriter::write(const EvalMetrics& m) {
  append(to_json_line(m));
  events_.scalars(m.step, {{"eval/loss", m.eval_loss}, {"eval/perplexity", std::exp(m.eval_loss)}});
}

void MetricsWriter::append(std::string line) {
  line += '\n';
  for (size_t done = 0; done < line.size();) {
    ssize_t written = ::write(fd_, line.data() + done, line.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw base::IoError(path_, errno, "writing");
    done += static_cast<size_t>(written);
  }
}

}  // namespace trireme::train
