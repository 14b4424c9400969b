#pragma once
// Which processes are on one host: those that reach one another by Unix sockets and shared memory.

#include <span>
#include <string>
#include <vector>

namespace trireme::comm {

/// The same text for the processes of one host (and, in containers, of one network), ending in a
/// space and the host's name. The variable TRIREME_HOST takes its place: a way to try several hosts
/// on one.
std::string host_identity();

/// Numbers of the hosts of ranks with these identities, from 0 in the order of the ranks.
std::vector<int> number_hosts(std::span<const std::string> identities);

}  // namespace trireme::comm
