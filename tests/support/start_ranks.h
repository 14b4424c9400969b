#pragma once
// Ranks as processes, each with the same command: on one host, on what looks like two (two ranks on each, TCP between
// them), and under mpirun with MPI between those. Each returns the exit code.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "trireme/comm/launch.h"

namespace trireme::test {

using Words = std::vector<std::string>;

inline int start_on_one_host(int ranks, const Words& words) {
  return comm::launch_local({.nproc = ranks, .prefix = false}, words);
}

inline int start_on_two_hosts(int ranks, const Words& words) {
  Words command{"sh", "-c", "TRIREME_HOST=$((RANK / 2)) exec \"$0\" \"$@\""};
  command.insert(command.end(), words.begin(), words.end());
  return start_on_one_host(ranks, command);
}

/// Four ranks; ask only where trireme has MPI.
inline bool has_mpirun() {
  return !std::string(TRIREME_MPIEXEC).empty();
}
inline int start_under_mpirun(const Words& words) {
  return std::system(fmt::format("bash '{}' '{}' '{}'", TRIREME_MPIRUN, TRIREME_MPIEXEC, fmt::join(words, "' '")).c_str());
}

}  // namespace trireme::test
