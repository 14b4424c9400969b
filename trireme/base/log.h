#pragma once
// Logger: one rank's log. Lines go to stderr (from a given level) and to the rank's own file.
//
// Not a global: whoever runs a rank owns its Logger and hands it down.

#include <fmt/format.h>

#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace trireme::base {

enum class LogLevel { debug, info, warning, error };

class Logger {
 public:
  /// `prefix` marks stderr lines ("rank 3"; empty: none). `stderr_level`: the lowest level shown on stderr.
  explicit Logger(std::string prefix = "", LogLevel stderr_level = LogLevel::info);
  ~Logger();
  /// Also appends every line, with its time, to `path`.
  void open_file(const std::string& path);
  void write(LogLevel level, std::string_view line);
  /// Only to the file: what stderr shows in another form.
  void write_file(std::string_view line);

  template <class... A>
  void info(fmt::format_string<A...> f, A&&... a) {
    write(LogLevel::info, fmt::format(f, std::forward<A>(a)...));
  }
  template <class... A>
  void warning(fmt::format_string<A...> f, A&&... a) {
    write(LogLevel::warning, fmt::format(f, std::forward<A>(a)...));
  }
  template <class... A>
  void error(fmt::format_string<A...> f, A&&... a) {
    write(LogLevel::error, fmt::format(f, std::forward<A>(a)...));
  }

 private:
  void append_to_file(std::string_view label, std::string_view line);
  std::string prefix_;
  LogLevel stderr_level_;
  std::mutex mutex_;
  FILE* file_ = nullptr;
};

}  // namespace trireme::base
