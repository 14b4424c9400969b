#pragma once
// Fuzz targets: what reads files that nobody can trust. `run` takes any bytes and may throw an
// Error that the user can mend (exit code 2); anything else is a bug. The same targets run under
// libFuzzer
// (-DTRIREME_FUZZ=ON, Clang) and under random damage in the ordinary tests.

#include <string>
#include <string_view>
#include <vector>

namespace trireme::fuzz {

struct Target {
  const char* name;
  /// Reads `bytes` as the target's kind of file; `folder` is for the files that takes.
  void (*run)(std::string_view bytes, const std::string& folder);
  /// Good files to start from.
  std::vector<std::string> (*seeds)(const std::string& folder);
};

const std::vector<Target>& targets();

}  // namespace trireme::fuzz
