#pragma once
// The flags of every subcommand that works on a run's configuration: --config F, --deepspeed F and key=value
// overrides, each winning over what stands before it.

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "trireme/config/run_config.h"

namespace trireme::tools {

struct ConfigOptions {
  std::string path, deepspeed;
  std::vector<std::string> overrides;

  void add_to(CLI::App& command);
  /// Tells on standard error which of DeepSpeed's keys have no counterpart.
  config::RunConfig load() const;
  /// The command line that says the same again.
  std::string command(const std::string& subcommand, int ranks) const;
};

/// Ends the program with an exit code once the subcommand is done.
void exit_with(int code);

}  // namespace trireme::tools
