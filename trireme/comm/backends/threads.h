#pragma once
// The ranks of one process, each a thread: for tests and for run_ranks.

#include <chrono>
#include <memory>
#include <vector>

#include "trireme/comm/comm.h"

namespace trireme::comm {

/// One backend for each of `size` ranks that share this process. `timeout` is the deadline of an
/// operation.
std::vector<std::unique_ptr<Backend>> make_thread_backends(int size,
                                                           std::chrono::milliseconds timeout);

}  // namespace trireme::comm
