#include "tests/support/fake_device.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/comm/backends/threads.h"

namespace trireme::test {
namespace {

constexpr c10::DeviceType kFake = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kDevices = 16;

// Device addresses are those of the host with a bit that makes them no addresses of this machine.
constexpr uintptr_t kBit = uintptr_t{1} << 62;

bool is_fake(const void* address) { return (reinterpret_cast<uintptr_t>(address) & kBit) != 0; }
void* there(void* host) { return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(host) | kBit); }
template <class T>
T* here(T* address) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(address) & ~kBit);
}

thread_local c10::DeviceIndex current = 0;

class FakeAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(kFake, current);
    if (bytes == 0) return {nullptr, nullptr, &release, device};
    void* host = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    return {there(host), host, &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t count) const override { std::memcpy(here(to), here(from), count); }

 private:
  static void release(void* host) { std::free(host); }
};
FakeAllocator allocator;
REGISTER_ALLOCATOR(kFake, &allocator);

struct FakeGuard final : c10::impl::DeviceGuardImplInterface {
  using Clock = std::chrono::steady_clock;
  c10::DeviceType type() const override { return kFake; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kFake, std::exchange(current, device.index())};
  }
  c10::Device getDevice() const override { return {kFake, current}; }
  void setDevice(c10::Device device) const override { current = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = device.index(); }
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Clock::time_point;
    *static_cast<Clock::time_point*>(*event) = Clock::now();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Clock::time_point*>(event);
  }
  double elapsedTime(void* begin, void* end, const c10::DeviceIndex) const override {
    return std::chrono::duration<double, std::milli>(*static_cast<Clock::time_point*>(end) -
                                                     *static_cast<Clock::time_point*>(begin))
        .count();
  }
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
  void synchronizeStream(const c10::Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, FakeGuard);

struct FakeHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
};
[[maybe_unused]] const bool hooked = [] {
  at::RegisterPrivateUse1HooksInterface(new FakeHooks);
  c10::register_privateuse1_backend("fake");
  return true;
}();

/// The same memory as a tensor of the CPU.
at::Tensor host_alias(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  return at::from_blob(here(tensor.mutable_data_ptr()), tensor.sizes(), tensor.strides(),
                       at::TensorOptions(tensor.scalar_type()));
}

at::Tensor fake_empty(c10::IntArrayRef size, std::optional<at::ScalarType> type, std::optional<at::Layout>,
                      std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::impl::VirtualGuardImpl guard(kFake);
  const c10::Device before = guard.exchangeDevice(device.value_or(c10::Device(kFake, current)));
  at::Tensor out(at::detail::empty_generic(size, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(type), format));
  guard.setDevice(before);
  return out;
}

at::Tensor fake_empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> type,
                              std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  c10::impl::VirtualGuardImpl guard(kFake);
  const c10::Device before = guard.exchangeDevice(device.value_or(c10::Device(kFake, current)));
  at::Tensor out(at::detail::empty_strided_generic(
      size, stride, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(type)));
  guard.setDevice(before);
  return out;
}

at::Tensor fake_copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  at::NoGradGuard no_grad;
  host_alias(to).copy_(host_alias(from));
  return to;
}

const at::Tensor& fake_resize(const at::Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat>) {
  const int64_t bytes = c10::multiply_integers(size) * static_cast<int64_t>(self.element_size());
  if (static_cast<size_t>(bytes) > self.storage().nbytes()) {
    c10::impl::VirtualGuardImpl guard(kFake);
    const c10::Device before = guard.exchangeDevice(self.device());
    self.storage().set_data_ptr(allocator.allocate(static_cast<size_t>(bytes)));
    self.storage().set_nbytes(static_cast<size_t>(bytes));
    guard.setDevice(before);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return self;
}

at::Tensor fake_copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (from.sizes() != to.sizes()) fake_resize(to, from.sizes(), {});
  return fake_copy_from(from, to, false);
}

/// Tensors of the host do not mix with those of a device, but for numbers and places.
void check_devices(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const std::string& name = op.schema().name();
  if (name.starts_with("aten::index") || name == "aten::_index_put_impl_") return;
  std::optional<c10::Device> device;
  auto look = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    if (!tensor.is_cpu()) {
      TORCH_CHECK(!device || *device == tensor.device(), name, ": tensors on ", *device, " and ", tensor.device());
      device = tensor.device();
    }
  };
  auto refuse = [&](const at::Tensor& tensor) {
    TORCH_CHECK(!tensor.defined() || !tensor.is_cpu() || tensor.dim() == 0, name, ": a tensor on the CPU among those on ",
                *device);
  };
  auto each = [&](const auto& visit) {
    for (const c10::IValue& value : torch::jit::last(stack, op.schema().arguments().size())) {
      if (value.isTensor()) visit(value.toTensor());
      if (value.isTensorList())
        for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
    }
  };
  each(look);
  if (device) each(refuse);
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  check_devices(op, *stack);
  at::native::cpu_fallback(op, stack, true);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &fake_empty);
  library.impl("empty_strided", &fake_empty_strided);
  library.impl("_copy_from", &fake_copy_from);
  library.impl("_copy_from_and_resize", &fake_copy_from_and_resize);
  library.impl("resize_", &fake_resize);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", &at::native::view);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
}

/// A group that takes device memory: the host's group on the real addresses.
class FakeGroup final : public comm::Group {
 public:
  explicit FakeGroup(comm::Comm host) : host_(std::move(host)) {}
  comm::Work all_reduce(void* data, int64_t count, comm::DType dtype, comm::Reduce reduce) override {
    return host_.all_reduce(here(data), count, dtype, reduce);
  }
  comm::Work reduce_scatter(const void* in, void* out, std::span<const int64_t> counts, comm::DType dtype,
                            comm::Reduce reduce) override {
    return host_.reduce_scatter(here(in), here(out), counts, dtype, reduce);
  }
  comm::Work all_gather(const void* in, void* out, std::span<const int64_t> counts, comm::DType dtype) override {
    return host_.all_gather(here(in), here(out), counts, dtype);
  }
  comm::Work broadcast(void* data, int64_t count, comm::DType dtype, int root) override {
    return host_.broadcast(here(data), count, dtype, root);
  }
  comm::Work all_to_all(const void* in, std::span<const int64_t> send_counts, void* out,
                        std::span<const int64_t> recv_counts, comm::DType dtype) override {
    return host_.all_to_all(here(in), send_counts, here(out), recv_counts, dtype);
  }
  comm::Work isend(const void* data, int64_t bytes, int peer, uint64_t tag) override {
    if (is_fake(data)) base::check(connected_, "a message of device memory before connect()");
    return host_.isend(here(data), bytes, peer, tag);
  }
  comm::Work irecv(void* data, int64_t bytes, int peer, uint64_t tag) override {
    return host_.irecv(here(data), bytes, peer, tag);
  }
  comm::SharedBuffer alloc(size_t bytes) override { return host_.alloc(bytes); }
  bool takes_device_memory() const override { return true; }
  void connect() override {
    host_.barrier();
    connected_ = true;
  }

 private:
  comm::Comm host_;
  bool connected_ = false;
};

class FakeBackend final : public comm::Backend {
 public:
  explicit FakeBackend(std::unique_ptr<comm::Backend> host) : host_(std::move(host)) {}
  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  int host(int rank) const override { return host_->host(rank); }
  comm::Comm make(std::vector<int> ranks, const std::string& name) override {
    comm::Comm plain = host_->make(ranks, name);
    if (ranks.size() == 1) return plain;
    return {std::move(ranks), plain.rank(), name, std::make_shared<FakeGroup>(plain)};
  }
  void abort(const std::string& why) override { host_->abort(why); }
  std::string failure() const override { return host_->failure(); }

 private:
  std::unique_ptr<comm::Backend> host_;
};

}  // namespace

c10::Device fake_device(int index) { return {kFake, static_cast<c10::DeviceIndex>(index)}; }

void run_on_fake_devices(int ranks, const std::function<void(dist::World&)>& body) {
  base::check(ranks <= kDevices, "{} fake devices, but there are {}", ranks, int{kDevices});
  auto backends = comm::make_thread_backends(ranks, std::chrono::seconds(60));
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      dist::set_rank_threads(1);
      current = static_cast<c10::DeviceIndex>(r);
      dist::World world(std::make_unique<FakeBackend>(std::move(backends[static_cast<size_t>(r)])), fake_device(r));
      try {
        body(world);
      } catch (const std::exception& e) {
        {
          std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
        world.abort(e.what());
      }
    });
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace trireme::test
