#include "trireme/train/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <vector>

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

struct Number {
  std::string_view name;
  std::optional<double> value;
  std::string text;     // exact, also for integers
  std::string_view tag;  // TensorBoard's
};

Number count(std::string_view name, int64_t value, std::string_view tag = {}) {
  return {name, static_cast<double>(value), std::to_string(value), tag};
}
Number number(std::string_view name, std::optional<double> value, std::string_view tag = {}) {
  return {name, value, digits(value), tag};
}

std::vector<Number> numbers(const StepMetrics& m) {
  return {count("step", m.step),
          number("loss", m.loss, "train/loss"),
          number("lr", m.lr, "train/lr"),
          number("grad_norm", m.grad_norm, "train/grad_norm"),
          number("loss_scale", m.loss_scale, "train/loss_scale"),
          count("tokens", m.tokens),
          count("samples", m.samples),
          number("step_seconds", m.step_seconds, "speed/step_seconds"),
          number("tokens_per_second", m.tokens_per_second, "speed/tokens_per_second"),
          number("model_flops_utilization", m.model_flops_utilization,
                 "speed/model_flops_utilization"),
          count("memory", m.memory, "memory/peak_bytes"),
          number("data_seconds", m.phases.data, "time/data"),
          number("forward_seconds", m.phases.forward, "time/forward"),
          number("backward_seconds", m.phases.backward, "time/backward"),
          number("wait_seconds", m.phases.wait, "time/wait"),
          number("optimizer_seconds", m.phases.optimizer, "time/optimizer"),
          number("checkpoint_seconds", m.phases.checkpoint, "time/checkpoint"),
          count("slowest_rank", m.slowest_rank),
          number("slowest_excess", m.slowest_excess, "speed/slowest_excess")};
}

template <class Text>
std::string joined(const StepMetrics& metrics, std::string_view separator, const Text& text) {
  std::string line;
  for (const Number& entry : numbers(metrics)) {
    if (!line.empty()) line += separator;
    line += text(entry);
  }
  return line;
}

std::string csv_header() {
  return joined({}, ",", [](const Number& entry) { return std::string(entry.name); });
}

std::string csv_row(const StepMetrics& metrics) {
  return joined(metrics, ",", [](const Number& entry) {
    if (!entry.value) return std::string();
    const bool quoted = !std::isfinite(*entry.value);
    return quoted ? entry.text.substr(1, entry.text.size() - 2) : entry.text;
  });
}

/// The whole lines of a file, without their ends; a last one cut off by a crash is left out.
std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (size_t end; (end = text.find('\n')) != std::string_view::npos; text.remove_prefix(end + 1))
    lines.push_back(text.substr(0, end));
  return lines;
}

/// What a run that resumes after `last_step` keeps of its metrics.jsonl.
std::string json_until(const std::string& path, int64_t last_step) {
  if (last_step == 0 || !std::filesystem::exists(path)) return "";
  const std::string text = base::read_file(path);
  std::string kept;
  int64_t line_number = 0;
  for (std::string_view line : lines_of(text)) {
    std::string place = fmt::format("{}:{}", path, ++line_number);
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

/// The same of its metrics.csv, with the header that it begins with.
std::string csv_until(const std::string& path, int64_t last_step) {
  std::string kept = csv_header() + "\n";
  if (last_step == 0 || !std::filesystem::exists(path)) return kept;
  const std::string text = base::read_file(path);
  const std::vector<std::string_view> lines = lines_of(text);
  if (lines.empty()) return kept;
  if (lines.front() != csv_header())
    throw base::FormatError(
        fmt::format("{}:1: has other columns than this version writes; move the file away", path));
  for (size_t i = 1; i < lines.size(); ++i) {
    int64_t step = 0;
    const char* end = lines[i].data() + lines[i].size();
    if (std::from_chars(lines[i].data(), end, step).ptr == lines[i].data())
      throw base::FormatError(fmt::format(
          "{}:{}: expected a line that begins with a step; repair the file or move it away", path,
          i + 1));
    if (step <= last_step) kept += fmt::format("{}\n", lines[i]);
  }
  return kept;
}

}  // namespace

std::string to_json_line(const StepMetrics& m) {
  const std::string line = joined(
      m, ", ", [](const Number& entry) { return fmt::format("\"{}\": {}", entry.name, entry.text); });
  std::string layers;
  for (const LayerNorms& layer : m.layers)
    layers += fmt::format(R"({}"{}": {{"grad_norm": {}, "param_norm": {}}})", layers.empty() ? "" : ", ", layer.name,
                          digits(layer.grad), digits(layer.param));
  return layers.empty() ? fmt::format("{{{}}}", line) : fmt::format(R"({{{}, "layers": {{{}}}}})", line, layers);
}

std::string to_json_line(const EvalMetrics& m) {
  std::string values;
  for (const auto& [name, value] : m.values) values += fmt::format(R"("eval_{}": {}, )", name, digits(value));
  return fmt::format(
      R"({{"step": {}, "eval_loss": {}, "eval_perplexity": {}, {}"tokens": {}, "seconds": {}}})",
      m.step, digits(m.eval_loss), digits(std::exp(m.eval_loss)), values, m.tokens, digits(m.seconds));
}

std::string to_prometheus(const StepMetrics& m) {
  std::string text;
  for (const Number& entry : numbers(m)) {
    if (!entry.value) continue;
    const double value = *entry.value;
    text += fmt::format("# TYPE trireme_{0} gauge\ntrireme_{0} {1}\n", entry.name,
                        std::isnan(value)   ? "NaN"
                        : std::isinf(value) ? (value < 0 ? "-Inf" : "+Inf")
                                            : entry.text);
  }
  return text;
}

MetricsWriter::Lines::Lines(std::string path, const std::string& kept) : path_(std::move(path)) {
  base::write_file_atomic(path_, kept);
  fd_ = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (fd_ < 0) throw base::IoError(path_, errno, "opening");
}

MetricsWriter::Lines::~Lines() { ::close(fd_); }

void MetricsWriter::Lines::append(std::string line) {
  line += '\n';
  for (size_t done = 0; done < line.size();) {
    ssize_t written = ::write(fd_, line.data() + done, line.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw base::IoError(path_, errno, "writing");
    done += static_cast<size_t>(written);
  }
}

MetricsWriter::MetricsWriter(const std::string& directory, int64_t resumed_step, bool csv)
    : json_(directory + "/metrics.jsonl", json_until(directory + "/metrics.jsonl", resumed_step)),
      events_(directory) {
  const std::string path = directory + "/metrics.csv";
  if (csv) csv_.emplace(path, csv_until(path, resumed_step));
}

void MetricsWriter::write(const StepMetrics& m) {
  json_.append(to_json_line(m));
  if (csv_) csv_->append(csv_row(m));
  std::vector<formats::Scalar> scalars;
  for (const Number& entry : numbers(m))
    if (entry.value && !entry.tag.empty()) scalars.push_back({entry.tag, *entry.value});
  std::vector<std::string> tags;
  for (const LayerNorms& layer : m.layers) {
    tags.push_back("grad_norm/" + layer.name);
    tags.push_back("param_norm/" + layer.name);
  }
  for (size_t i = 0; i < tags.size(); ++i)
    scalars.push_back({tags[i], i % 2 == 0 ? m.layers[i / 2].grad : m.layers[i / 2].param});
  events_.scalars(m.step, scalars);
}

void MetricsWriter::write(const EvalMetrics& m) {
  json_.append(to_json_line(m));
  std::vector<std::string> tags;
  for (const auto& [name, value] : m.values) tags.push_back("eval/" + name);
  std::vector<formats::Scalar> scalars = {{"eval/loss", m.eval_loss}, {"eval/perplexity", std::exp(m.eval_loss)}};
  for (size_t i = 0; i < tags.size(); ++i) scalars.push_back({tags[i], m.values[i].second});
  events_.scalars(m.step, scalars);
}

}  // namespace trireme::train
