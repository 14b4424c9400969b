#pragma once
// launch_local: starts the ranks of this host as processes and looks after them until all have
// ended.
//
// Each gets torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK,
// GROUP_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RESTART_COUNT) and, when all ranks are
// here, TRIREME_STORE: the address of a store that the launcher serves. With several hosts the
// caller serves the store at MASTER_ADDR, and `before_start` makes the hosts start (and start again)
// together. The ranks are its direct
// children, each in a process group of its own, and are killed by the kernel when the launcher
// dies. TRIREME_ERROR_FD is a pipe for the error that ends a rank.

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::comm {

struct LaunchOptions {
  int nproc = 1;                  // ranks on this host
  int nnodes = 1, node_rank = 0;  // with several hosts each runs a launcher with the same nproc
  std::string master_addr = "127.0.0.1";
  int master_port = 0;   // 0: a free one (one host only)
  int max_restarts = 0;  // after a failure all ranks start again
  /// Called before the ranks start for the first time (0) and before each restart (1 and up).
  std::function<void(int attempt)> before_start = {};
  bool prefix =
      true;  // lines of output start with "[rank N] "; else ranks inherit stdout and stderr
  /// After a failure the others may end by themselves, then get SIGTERM, and SIGKILL after `grace`.
  std::chrono::milliseconds settle{1000}, grace{3000};
};

/// Runs `command` (searched in PATH) as every rank and returns 0, or the exit code of the rank that
/// failed first (128 + the signal that killed it), after a line on stderr that says why: the error
/// that it reported, else which rank it was and how it ended. A failure that only reports the loss
/// of a peer (exit code 3) is not taken for the first when there is another. SIGINT, SIGTERM and SIGHUP are passed on to all ranks; the third one
/// kills them. Call it from a thread that lives on, usually main. ConfigError, IoError.
int launch_local(const LaunchOptions& options, const std::vector<std::string>& command);

/// In a rank: hands the error that ends it to launch_local, which prints equal ones once, with the
/// ranks that had them. Of those of exit code 3 it prints one, and none where there is a cause.
/// False where no launcher of this kind listens. torchrun finds the error in its TORCHELASTIC_ERROR_FILE.
bool report_to_launcher(std::string_view message);

/// In a rank: does its launcher put "[rank N] " before each of its lines?
bool launcher_prefixes();

}  // namespace trireme::comm
