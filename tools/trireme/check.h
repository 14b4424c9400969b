#pragma once
// check: tries the communication of the ranks, for `trireme launch --check`.

namespace trireme::tools {

struct CheckOptions {
  int tensor_parallel = 1, pipeline_parallel = 1;  // the rest of the ranks is data parallel
};

/// In a rank: every collective, checked and timed, among all ranks and along each axis of the mesh. Rank 0 prints a
/// table and a line per axis. Collective over the world. InternalError where a result is wrong.
void check_communication(const CheckOptions& options);

}  // namespace trireme::tools
