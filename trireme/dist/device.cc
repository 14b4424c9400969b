#include "trireme/dist/device.h"

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "trireme/base/error.h"
#include "trireme/base/wording.h"

namespace trireme::dist {
namespace {

/// How LibTorch reaches a kind of device.
c10::impl::VirtualGuardImpl access(c10::DeviceType type) { return c10::impl::VirtualGuardImpl(type); }

}  // namespace

void check_device(const std::string& name) {
  if (name == "cpu") return;
  if (name != "cuda") throw base::ConfigError(fmt::format("train.device is {}; expected cpu or cuda", name));
  if (!c10::impl::hasDeviceGuardImpl(c10::kCUDA))
    throw base::ConfigError(
        "train.device is cuda, but this trireme is built with LibTorch for the CPU: set it to cpu, or build with a CUDA "
        "build of LibTorch (TRIREME_TORCH, docs/clusters.md)");
  if (access(c10::kCUDA).deviceCount() == 0)
    throw base::ConfigError(
        "train.device is cuda, but no GPU is there: nvidia-smi should list one, and CUDA_VISIBLE_DEVICES must not hide "
        "it; set train.device to cpu to go on without");
}

c10::Device open_device(const std::string& name, int index, int ranks) {
  check_device(name);
  if (name == "cpu") return c10::kCPU;
  const auto guard = access(c10::kCUDA);
  const int there = guard.deviceCount();
  if (ranks > there)
    throw base::ConfigError(
        fmt::format("train.device is cuda and this host runs {}, each of which needs a GPU of its own, but {} visible: start "
                    "fewer ranks on it, or let each of them see all of the host's GPUs (CUDA_VISIBLE_DEVICES)",
                    base::counted(ranks, "rank"), there == 1 ? "1 is" : fmt::format("{} are", there)));
  const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
  guard.setDevice(device);
  return device;
}

at::Tensor to_device(const at::Tensor& host, c10::Device device) {
  if (host.device() == device) return host;
  const at::Tensor from = device.is_cuda() ? host.pin_memory() : host;
  return from.to(device, /*non_blocking=*/true);
}

at::Tensor to_host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor.contiguous();
  at::Tensor host = at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()).pinned_memory(tensor.is_cuda()));
  return host.copy_(tensor);
}

void synchronize(c10::Device device) {
  if (device.is_cpu()) return;
  access(device.type()).synchronizeDevice(device.index());
}

kernels::MemoryCounters memory_counters(c10::Device device) {
  auto* allocator = device.is_cpu() ? nullptr : dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (allocator == nullptr) return kernels::memory_counters();
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto requested = allocator->getDeviceStats(device.index()).requested_bytes[kAll];
  return {.live = requested.current, .peak = requested.peak};
}

void* pointer(const at::Tensor& tensor, const comm::Comm& comm) {
  base::check(tensor.is_contiguous(), "what ranks exchange must be contiguous");
  if (!tensor.is_cpu() && comm.size() > 1 && !comm.takes_device_memory())
    throw base::ConfigError(
        fmt::format("group '{}' connects its ranks through memory of the host, but was given a tensor on {}: ranks with GPUs "
                    "need the nccl backend, which train.device cuda starts where trireme is built with it",
                    comm.name(), tensor.device().str()));
  return tensor.mutable_data_ptr();
}

DeviceClock::Mark DeviceClock::mark() {
  if (device_.is_cpu()) {
    marks_.emplace_back(std::chrono::steady_clock::now());
  } else {
    c10::Event event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);  // a kind that can be timed
    event.record(access(device_.type()).getStream(device_));
    marks_.emplace_back(std::move(event));
  }
  return marks_.size() - 1;
}

double DeviceClock::seconds(Mark from, Mark to) const {
  if (const auto* begin = std::get_if<Host>(&marks_[from]))
    return std::chrono::duration<double>(std::get<Host>(marks_[to]) - *begin).count();
  const auto &begin = std::get<c10::Event>(marks_[from]), &end = std::get<c10::Event>(marks_[to]);
  end.synchronize();
  return begin.elapsedTime(end) / 1e3;
}

}  // namespace trireme::dist
