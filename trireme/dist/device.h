#pragma once
// Devices: where a rank's tensors live. A rank has one device, World's; `cuda` gives each rank of a host a GPU of its
// own. What the host must see (losses, norms, files) is copied through pinned memory; times of a device are those of
// its stream, not of the calls that fill it. On the CPU all of this is what it always was.
//
//   dist::check_device("cuda");                         // before anything starts
//   at::Tensor x = dist::to_device(batch, mesh.device); // pinned, and not waited for
//
// Collectives take device memory where the comm says so (comm/backends/nccl.h); `pointer` refuses it elsewhere.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <chrono>
#include <string>
#include <variant>
#include <vector>

#include "trireme/comm/comm.h"
#include "trireme/kernels/allocator.h"

namespace trireme::dist {

/// ConfigError where `name` (cpu or cuda, as train.device gives it) is no device of this build or machine. Local.
void check_device(const std::string& name);

/// The device of a rank that is the `index`-th of `ranks` on its host. ConfigError where the host has fewer GPUs than
/// ranks. Makes it the calling thread's device. Local.
c10::Device open_device(const std::string& name, int index, int ranks);

/// A tensor of the host (or one that is there already) on `device`: through pinned memory, without waiting. Local.
at::Tensor to_device(const at::Tensor& host, c10::Device device);

/// A tensor's values in memory of the host, contiguous; itself where it lies there. Through pinned memory. Local.
at::Tensor to_host(const at::Tensor& tensor);

/// Returns when the device has done all that it was given. Local.
void synchronize(c10::Device device);

/// Bytes of tensors on the rank's device. Local.
kernels::MemoryCounters memory_counters(c10::Device device);

/// Where the elements of a contiguous tensor lie, for an operation of `comm`. ConfigError where the tensor is on a
/// device and the ranks are connected through memory of the host.
void* pointer(const at::Tensor& tensor, const comm::Comm& comm);

/// Times on a device. A mark is a moment of its stream; reading one waits for it.
class DeviceClock {
 public:
  explicit DeviceClock(c10::Device device) : device_(device) {}
  using Mark = size_t;
  Mark mark();
  /// Seconds from one mark to another.
  double seconds(Mark from, Mark to) const;

 private:
  using Host = std::chrono::steady_clock::time_point;
  c10::Device device_;
  std::vector<std::variant<Host, c10::Event>> marks_;
};

}  // namespace trireme::dist
