#pragma once
// Ranks of different hosts over TCP, for clusters without MPI. Each rank is connected to every rank
// of the other hosts. What connects must know the job's secret, which the store holds; payloads are
// neither encrypted nor authenticated, so the network between the hosts has to be trusted.

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/store.h"
#include "trireme/comm/wire.h"

namespace trireme::comm {

/// Connects `rank` to the ranks of other hosts, which find one another through `store`. `hosts[r]`
/// is the number of rank r's host. `address`: this host's, as the others reach it. Collective over
/// all ranks; CommError when they are not there within `timeout`. A rank whose process or host ends
/// makes the operations of the others fail at once.
std::shared_ptr<Wire> make_tcp_wire(int rank, const std::vector<int>& hosts, Store& store,
                                    const std::string& address, std::chrono::milliseconds timeout);

/// This host's address on the way to `towards` (a name or an address); not a loopback address
/// unless there is no other. The variable TRIREME_ADDRESS overrides it. CommError.
std::string own_address(const std::string& towards);

}  // namespace trireme::comm
