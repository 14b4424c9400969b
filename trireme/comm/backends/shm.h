#pragma once
// The processes of one host as ranks, over memory they share. The memory and the liveness of each
// rank are passed as descriptors over a Unix socket: nothing has a name, so nothing is left behind,
// whoever is killed. With a wire, the ranks of several hosts: memory within each, the wire between.

#include <chrono>
#include <memory>

#include "trireme/comm/comm.h"
#include "trireme/comm/store.h"
#include "trireme/comm/wire.h"

namespace trireme::comm {

/// Joins the ranks of this host, which find one another through `store`. Collective over all `size`
/// ranks; CommError when they are not there within `timeout`, which is also the deadline of
/// operations. A rank whose process ends makes the operations of the others fail at once. A process
/// that a rank forks without exec counts as that rank.
std::unique_ptr<Backend> make_shm_backend(int rank, int size, Store& store,
                                          std::chrono::milliseconds timeout);

/// The same for ranks on several hosts: `hosts[r]` is the number of rank r's host, `wire` (not
/// started) connects them. `store` is asked for ranks of this host only.
std::unique_ptr<Backend> make_shm_backend(int rank, std::vector<int> hosts, Store& store,
                                          std::shared_ptr<Wire> wire,
                                          std::chrono::milliseconds timeout);

}  // namespace trireme::comm
