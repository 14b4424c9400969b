#pragma once
// Ranks that mpirun or srun has started, over the cluster's own MPI. Within a host they share
// memory as ever; MPI carries messages between hosts only. MPI itself is begun with the first call
// and ended at exit. Where trireme is built without MPI all of this throws ConfigError.

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/comm.h"

namespace trireme::comm {

/// The MPI that trireme is built with, for example "Open MPI v4.1.4"; empty: none.
std::string mpi_version();

/// Connects this process to the first `size` processes of the job (0: all). Collective over these.
/// `timeout` is the deadline of operations. A process that ends is noticed at once by those of its
/// host, which tell the others; a host that vanishes, when the deadline of an operation passes.
std::unique_ptr<Backend> make_mpi_backend(std::chrono::milliseconds timeout, int size = 0);

/// Every process's text, in order of rank. Collective over all processes of the job; not while
/// backends are open.
std::vector<std::string> mpi_all_gather(const std::string& own);

}  // namespace trireme::comm
