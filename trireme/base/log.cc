#include "trireme/base/log.h"

#include <cerrno>
#include <cstdio>
#include <ctime>

#include "trireme/base/error.h"

namespace trireme::base {
namespace {
constexpr std::string_view kLabels[] = {"debug: ", "", "warning: ", "error: "};

/// Each line of a text behind the prefix, so that the columns of a table stay in line.
std::string lines(std::string_view prefix, std::string_view label, std::string_view text) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  std::string out = fmt::format("{}{}", prefix, label);
  for (char c : text) {
    out += c;
    if (c == '\n') out += prefix;
  }
  return out + '\n';
}

}  // namespace

Logger::Logger(std::string prefix, LogLevel stderr_level)
    : prefix_(std::move(prefix)), stderr_level_(stderr_level) {}

Logger::~Logger() {
  if (file_) std::fclose(file_);
}

void Logger::open_file(const std::string& path) {
  std::lock_guard lock(mutex_);
  if (file_) std::fclose(file_);
  file_ = std::fopen(path.c_str(), "ae");
  if (!file_) throw IoError(path, errno, "opening the log");
}

void Logger::write(LogLevel level, std::string_view line) {
  std::lock_guard lock(mutex_);
  std::string_view label = kLabels[static_cast<int>(level)];
  if (level >= stderr_level_) {
    const std::string text =
        lines(prefix_.empty() ? "" : fmt::format("[{}] ", prefix_), label, line);
    std::fwrite(text.data(), 1, text.size(), stderr);
  }
  append_to_file(label, line);
}

void Logger::write_file(std::string_view line) {
  std::lock_guard lock(mutex_);
  append_to_file("", line);
}

void Logger::append_to_file(std::string_view label, std::string_view line) {
  if (!file_) return;
  std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  char stamp[32];
  std::strftime(stamp, sizeof stamp, "%F %T ", &local);
  const std::string text = lines(stamp, label, line);
  std::fwrite(text.data(), 1, text.size(), file_);
  std::fflush(file_);
}

}  // namespace trireme::base
