#pragma once
// Ranks with a GPU each, over NCCL. A backend for the host's memory stays underneath: it connects the
// ranks, carries what lies on the host (also in the same groups) and tells when a peer has ended.
// NCCL moves what lies in the memory of the GPUs; which of the two it is, the buffers say.
//
// Operations on device memory take their place on the device's default stream, on which LibTorch
// works: they begin when what the stream was given before is done, run on a stream of their own, and
// Work::wait() holds back the stream, not the caller, until the result is there. A thread watches
// what is in flight; past the deadline, or when a peer has ended, the communicators are aborted and
// later calls throw CommError. Sums are made by NCCL, in an order of its own.
//
// Messages of device memory go between neighbours of a group, each direction over a communicator of
// its own, so that no send waits behind another one's receive. A header from host to host says which
// message comes next; one that nobody has asked for yet waits in memory of its own.

#include <chrono>
#include <memory>
#include <string>

#include "trireme/comm/comm.h"

namespace trireme::comm {

/// The NCCL that trireme is built with, for example "2.30.7"; empty: none.
std::string nccl_version();

/// Adds the memory of GPU `device` of this process to a backend. `timeout` is the deadline of
/// operations on it. The groups it makes must be made by all their ranks in one order. ConfigError
/// where trireme is built without NCCL; CommError.
std::unique_ptr<Backend> make_nccl_backend(std::unique_ptr<Backend> host, int device,
                                           std::chrono::milliseconds timeout);

}  // namespace trireme::comm
