#pragma once
// Errors. Every failure of trireme is one of five kinds, each with the program's exit code.
//
// A message says what happened, what was given, what was expected and what to do. Nothing in trireme
// aborts: a failed internal check throws InternalError.
//
//   throw ConfigError(fmt::format("tensor_parallel_size {} does not divide n_head {}; use 1, 2 or 4", t, h));

#include <fmt/format.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace trireme::base {

class Error : public std::runtime_error {
 public:
  Error(const char* kind, int exit_code, const std::string& message)
      : std::runtime_error(message), kind_(kind), exit_code_(exit_code) {}
  /// The kind's name, for example "ConfigError".
  const char* kind() const { return kind_; }
  /// The exit code of the program when this error ends it.
  int exit_code() const { return exit_code_; }

 private:
  const char* kind_;
  int exit_code_;
};

/// The user must change a setting, an argument or a combination of them.
struct ConfigError : Error {
  explicit ConfigError(const std::string& message) : Error("ConfigError", 2, message) {}
};

/// A file does not hold what its format demands. The message starts with the path and the place.
struct FormatError : Error {
  explicit FormatError(const std::string& message) : Error("FormatError", 2, message) {}
  FormatError(const std::string& path, int64_t offset, const std::string& message)
      : FormatError(fmt::format("{} (byte {}): {}", path, offset, message)) {}
};

/// Communication failed: a peer died or stalled, or two ends disagree.
struct CommError : Error {
  explicit CommError(const std::string& message) : Error("CommError", 3, message) {}
};

/// The operating system refused to read or write.
struct IoError : Error {
  explicit IoError(const std::string& message) : Error("IoError", 4, message) {}
  /// Appends the text of `error_number` (an errno).
  IoError(const std::string& path, int error_number, const std::string& doing);
};

/// A bug of ours.
struct InternalError : Error {
  explicit InternalError(const std::string& message) : Error("InternalError", 70, message) {}
};

/// Throws InternalError unless `condition` holds.
template <class... Args>
void check(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) throw InternalError(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace trireme::base
