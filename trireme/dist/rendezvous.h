#pragma once
// Rendezvous: from the variables of a launcher (comm/launched.h) to a backend that connects the ranks.
//
// Ranks meet through MPI where mpirun started them and trireme is built with MPI, else through
// c10d::TCPStore or the store that `trireme launch` serves on one host (TRIREME_STORE). Ranks of one
// host share memory; between hosts messages go over MPI or TCP. TRIREME_TRANSPORT=mpi|tcp chooses.

#include <chrono>
#include <memory>
#include <string>

#include "trireme/comm/comm.h"
#include "trireme/comm/launched.h"
#include "trireme/comm/store.h"

namespace trireme::dist {

using comm::LaunchedRank, comm::launched_rank;

/// A c10d::TCPStore, served by rank 0 (or by the launcher's agent); its failures are CommErrors.
std::unique_ptr<comm::Store> connect_tcp_store(const std::string& host, int port, bool serve,
                                               std::chrono::milliseconds timeout);

/// Connects this process to the other ranks. Collective over all ranks. Without a launcher a backend
/// of one rank. `timeout` is that of the start and of each operation. ConfigError, CommError.
std::unique_ptr<comm::Backend> rendezvous_from_env(std::chrono::milliseconds timeout);

}  // namespace trireme::dist
