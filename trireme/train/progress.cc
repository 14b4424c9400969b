#include "trireme/train/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace trireme::train {
namespace {

constexpr auto kRedraw = std::chrono::milliseconds(80);
constexpr int kBarWidth = 30;

bool variable_set(const char* name) {
  const char* value = std::getenv(name);
  return value && *value;
}

bool on_terminal() {
  const char* term = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) && !(term && std::string_view(term) == "dumb");
}

int terminal_width() {
  winsize size{};
  bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

std::string colored(const std::string& text, int code, bool color) {
  return color && !text.empty() ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : text;
}

}  // namespace

std::string format_duration(double seconds) {
  if (!(seconds >= 0 && seconds < 1e10)) return "?";
  int64_t s = std::llround(seconds), days = s / 86400, hours = s / 3600 % 24, minutes = s / 60 % 60;
  if (days > 0) return fmt::format("{}d {}:{:02}:{:02}", days, hours, minutes, s % 60);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, s % 60);
  return fmt::format("{}:{:02}", minutes, s % 60);
}

std::string format_count(double value) {
  constexpr std::string_view kUnits[] = {"", "k", "M", "G", "T"};
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < std::size(kUnits)) value /= 1000, ++unit;
  int decimals = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f}{}", value, decimals, kUnits[unit]);
}

std::string render_bar(const StepMetrics& metrics, int64_t steps, double eta_seconds, int width,
                       bool color) {
  double share = steps > 0 ? std::clamp(static_cast<double>(metrics.step) / steps, 0.0, 1.0) : 1.0;
  std::string count =
      fmt::format("{:>{}}/{}", metrics.step, fmt::formatted_size("{}", steps), steps);
  std::string loss = fmt::format("  loss {:.4f}", metrics.loss);
  std::string rest = fmt::format("  {} tokens/s  ETA {}", format_count(metrics.tokens_per_second),
                                 format_duration(eta_seconds));
  int used = static_cast<int>(count.size() + loss.size() + rest.size());
  int cells = std::min(kBarWidth, width - 1 - used - 2);
  if (cells < 5) {
    std::string line = count + loss + rest;
    return line.substr(0, std::max(0, width - 1));
  }
  // Eighths of a cell make the bar move evenly.
  constexpr std::string_view kPartial[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  int eighths = static_cast<int>(share * cells * 8);
  std::string done, left;
  for (int i = 0; i < eighths / 8; ++i) done += "█";
  done += kPartial[eighths % 8];
  for (int i = (eighths + 7) / 8; i < cells; ++i) left += "·";
  return fmt::format("{}  {}{}{}{}", count, colored(done, 32, color), colored(left, 2, color),
                     colored(loss, 1, color), rest);
}

std::string render_line(const StepMetrics& metrics, int64_t steps, double eta_seconds) {
  return fmt::format(
      "step {}/{}  loss {:.4f}  lr {:.3e}  grad norm {:.3f}  {} tokens/s  {:.3f} s/step  ETA {}",
      metrics.step, steps, metrics.loss, metrics.lr, metrics.grad_norm,
      format_count(metrics.tokens_per_second), metrics.step_seconds, format_duration(eta_seconds));
}

Progress::Progress(int64_t steps, int64_t first_step, int64_t log_period, base::Logger& logger)
    : steps_(steps),
      first_step_(first_step),
      log_period_(log_period),
      logger_(logger),
      terminal_(on_terminal()),
      color_(terminal_ && !variable_set("NO_COLOR")) {}

Progress::~Progress() {
  if (!bar_.empty()) std::fputs("\n", stderr);
}

double Progress::eta(const StepMetrics& metrics) {
  // The first steps warm caches up and say little; later ones count with a horizon of about 20.
  int64_t seen = metrics.step - first_step_;
  double weight = seen <= 2 ? 1.0 : std::max(0.05, 1.0 / static_cast<double>(seen - 1));
  mean_seconds_ += weight * (metrics.step_seconds - mean_seconds_);
  return mean_seconds_ * static_cast<double>(steps_ - metrics.step);
}

void Progress::step(const StepMetrics& metrics) {
  double eta_seconds = eta(metrics);
  bool last = metrics.step >= steps_;
  if (metrics.step % log_period_ == 0 || metrics.step == first_step_ + 1 || last) {
    std::string line = render_line(metrics, steps_, eta_seconds);
    terminal_ ? logger_.write_file(line) : logger_.write(base::LogLevel::info, line);
  }
  if (!terminal_) return;
  // Even where it is not drawn now: a message draws it anew.
  bar_ = render_bar(metrics, steps_, eta_seconds, terminal_width(), color_);
  auto now = std::chrono::steady_clock::now();
  if (!last && now - drawn_ < kRedraw) return;
  drawn_ = now;
  draw();
}

void Progress::evaluated(const EvalMetrics& metrics) {
  std::string values;
  for (const auto& [name, value] : metrics.values) values += fmt::format("{} {:.4f}  ", name, value);
  message(
      fmt::format("step {}/{}  validation loss {:.4f}  {}{}{} {} in {:.1f} s", metrics.step, steps_, metrics.eval_loss,
                  metrics.of_tokens ? fmt::format("perplexity {:.2f}  ", std::exp(metrics.eval_loss)) : "", values,
                  format_count(static_cast<double>(metrics.tokens)), metrics.of_tokens ? "tokens" : "labels",
                  metrics.seconds));
}

void Progress::message(const std::string& line) {
  clear();
  logger_.write(base::LogLevel::info, line);
  draw();
}

void Progress::draw() {
  if (bar_.empty()) return;
  std::string text = "\r" + bar_ + "\x1b[K";
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

void Progress::clear() {
  if (!bar_.empty()) std::fputs("\r\x1b[K", stderr);
}

}  // namespace trireme::train
