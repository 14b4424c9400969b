#pragma once
// The subcommands of the program, one thin file each. `add_x` declares the flags of `trireme x` and the callback
// that runs it. Failures leave as exceptions; main turns them into exit codes.

#include <CLI/CLI.hpp>

namespace trireme::tools {

// Signature of all: void add_x(CLI::App& program);

}  // namespace trireme::tools
