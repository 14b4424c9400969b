#pragma once
// Rendezvous: from the variables of a launcher to a backend that connects the ranks.
//
// Understood are torchrun's variables (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), then Slurm's,
// Open MPI's and PMI's for rank and number. Ranks meet through c10d::TCPStore, or through the store
// that `trireme launch` serves (TRIREME_STORE).

#include <chrono>
#include <memory>
#include <string>

#include "trireme/comm/comm.h"
#include "trireme/comm/store.h"

namespace trireme::dist {

/// What a launcher says about this process. `source` names the launcher, empty: there is none.
struct LaunchedRank {
  int rank = 0, size = 1;
  std::string source;
};
/// Reads the environment; ConfigError when a launcher's variables are incomplete or wrong.
LaunchedRank launched_rank();

/// A c10d::TCPStore, served by rank 0 (or by torchrun's agent); its failures are CommErrors.
std::unique_ptr<comm::Store> connect_tcp_store(const std::string& host, int port, bool serve,
                                               std::chrono::milliseconds timeout);

/// Connects this process to the other ranks: shared memory when all run on one host. Collective
/// over all ranks. Without a launcher a backend of one rank. ConfigError when ranks run on several
/// hosts, since backend `mpi` is not built. `timeout` is that of the start and of each operation.
std::unique_ptr<comm::Backend> rendezvous_from_env(std::chrono::milliseconds timeout);

}  // namespace trireme::dist
