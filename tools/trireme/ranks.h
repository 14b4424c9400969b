#pragma once
// ranks: how a subcommand gets its ranks: from a launcher's environment, as N local processes that it starts itself,
// or as threads of this process.

#include <functional>
#include <string>
#include <vector>

#include "trireme/dist/world.h"

namespace trireme::tools {

/// Ranks of this job: the launcher's number, else `ranks`, else one. ConfigError when the two contradict.
int job_size(int ranks);
/// Is this process one of the ranks that a launcher started?
bool by_launcher();

/// Runs `body` on this process's rank. With `ranks` > 1 and no launcher, starts this program again as `ranks` local
/// processes and returns when they have ended. Returns the exit code.
int run_processes(int ranks, double timeout_seconds, const std::string& device,
                  const std::function<void(dist::World&)>& body);

/// Runs `body` as `ranks` threads of this process.
void run_threads(int ranks, const std::string& device, const std::function<void(dist::World&)>& body);

}  // namespace trireme::tools
