#include "trireme/comm/backends/nccl_channel.h"

#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kLook = 50ms;     // between looks at what is in flight
constexpr auto kSettle = 100us;  // between looks at a call that is not over

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

void expect_cuda(cudaError_t code, const char* doing) {
  if (code != cudaSuccess)
    throw base::CommError(fmt::format("CUDA could not {}: {}", doing, cudaGetErrorString(code)));
}

Moment::Moment(cudaStream_t stream) {
  expect_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "make an event");
  if (cudaError_t code = cudaEventRecord(event_, stream); code != cudaSuccess) {
    cudaEventDestroy(event_);
    expect_cuda(code, "record an event");
  }
}

Moment::~Moment() {
  cudaEventDestroy(event_);
}

void Moment::hold(cudaStream_t stream) const {
  expect_cuda(cudaStreamWaitEvent(stream, event_, 0), "wait for an event");
}

bool Moment::passed() const {
  const cudaError_t code = cudaEventQuery(event_);
  if (code == cudaErrorNotReady) return false;
  expect_cuda(code, "look at an event");
  return true;
}

Channel::Channel(std::shared_ptr<Watch> watch, const ncclUniqueId& id, int rank, int size,
                 std::string name, std::string peers)
    : watch_(std::move(watch)), name_(std::move(name)), peers_(std::move(peers)) {
  watch_->use_device();
  expect_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "make a stream");
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;  // calls return, so that a peer that never comes is noticed
  try {
    settle(ncclCommInitRankConfig(&comm_, size, id, rank, &config), "connect");
  } catch (...) {
    if (comm_ != nullptr) ncclCommAbort(comm_);
    cudaStreamDestroy(stream_);
    throw;
  }
}

Channel::~Channel() {
  cudaSetDevice(watch_->device());
  // What is unfinished belongs to a job that ends in failure; waiting for it might take forever.
  const bool idle = flights_.empty() || cudaStreamQuery(stream_) == cudaSuccess;
  if (comm_ != nullptr) idle ? ncclCommDestroy(comm_) : ncclCommAbort(comm_);
  cudaStreamDestroy(stream_);
}

std::string Channel::describe(const std::string& what) const {
  return fmt::format("{} in group '{}' (peers {})", what, name_, peers_);
}

void Channel::expect_whole() const {
  if (!failure_.empty()) throw base::CommError(failure_);
}

void Channel::settle(ncclResult_t code, const std::string& what) {
  const auto begin = Clock::now();
  while (code == ncclInProgress) {
    std::this_thread::sleep_for(kSettle);
    if (std::string why = watch_->failure(); !why.empty())
      throw base::CommError(fmt::format("{}: {}", describe(what), why));
    if (Clock::now() - begin > watch_->timeout())
      throw base::CommError(fmt::format("gave up: {} waited {:.2f} s for NCCL", describe(what),
                                        seconds_since(begin)));
    if (ncclResult_t asked = ncclCommGetAsyncError(comm_, &code); asked != ncclSuccess)
      code = asked;
  }
  if (code != ncclSuccess)
    throw base::CommError(fmt::format("{}: NCCL failed: {} ({})", describe(what),
                                      ncclGetErrorString(code),
                                      comm_ != nullptr ? ncclGetLastError(comm_) : ""));
}

std::shared_ptr<Flight> Channel::run(std::string what, const Moment& ready, const Issue& issue) {
  watch_->use_device();
  std::lock_guard lock(mutex_);
  expect_whole();
  ready.hold(stream_);
  settle(issue(comm_, stream_), what);
  auto flight = std::make_shared<Flight>(Flight{std::move(what), Clock::now()});
  flight->end = std::make_unique<Moment>(stream_);
  flights_.push_back(flight);
  return flight;
}

void Channel::land(const Flight& flight) {
  watch_->use_device();
  if (failed_) {
    std::lock_guard lock(mutex_);
    expect_whole();
  }
  flight.end->hold(cudaStreamLegacy);
}

bool Channel::landed(const Flight& flight) {
  watch_->use_device();
  return failed_ || flight.end->passed();
}

std::string Channel::look(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || failed_) return "";  // its own thread is at it
  while (!flights_.empty() && flights_.front()->end->passed()) flights_.pop_front();
  ncclResult_t code = ncclSuccess;
  if (ncclResult_t asked = ncclCommGetAsyncError(comm_, &code); asked != ncclSuccess) code = asked;
  if (code != ncclSuccess && code != ncclInProgress)
    return fmt::format("{}: NCCL failed: {} ({})",
                       describe(flights_.empty() ? "idle" : flights_.front()->what),
                       ncclGetErrorString(code), ncclGetLastError(comm_));
  if (flights_.empty() || Clock::now() - flights_.front()->since < timeout) return "";
  return fmt::format("gave up: {} has not ended within {:.2f} s (timeout {:.2f} s)",
                     describe(flights_.front()->what), seconds_since(flights_.front()->since),
                     std::chrono::duration<double>(timeout).count());
}

void Channel::fail(const std::string& why) {
  std::lock_guard lock(mutex_);
  if (failed_) return;
  failure_ = why;
  failed_ = true;
  if (comm_ != nullptr) ncclCommAbort(std::exchange(comm_, nullptr));
}

Watch::Watch(Backend& host, int device, std::chrono::milliseconds timeout)
    : host_(&host), device_(device), timeout_(timeout) {
  thread_ = std::thread([this] { run(); });
}

Watch::~Watch() {
  stop();
}

void Watch::use_device() const {
  expect_cuda(cudaSetDevice(device_), "use the rank's GPU");
}

void Watch::add(const std::shared_ptr<Channel>& channel) {
  std::lock_guard lock(mutex_);
  std::erase_if(channels_, [](const auto& old) { return old.expired(); });
  channels_.push_back(channel);
}

std::string Watch::failure() const {
  std::lock_guard lock(mutex_);
  return host_ != nullptr ? host_->failure() : "";
}

void Watch::fail(const std::string& why) {
  {
    std::lock_guard lock(mutex_);
    if (host_ != nullptr) host_->abort(why);
  }
  fail_channels(why);
}

void Watch::fail_channels(const std::string& why) {
  std::vector<std::shared_ptr<Channel>> alive;
  {
    std::lock_guard lock(mutex_);
    for (const auto& channel : channels_)
      if (auto held = channel.lock()) alive.push_back(std::move(held));
  }
  for (const auto& channel : alive) channel->fail(why);
}

void Watch::stop() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    host_ = nullptr;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watch::run() {
  bool failed = false;
  while (true) {
    std::vector<std::shared_ptr<Channel>> alive;
    std::string why;
    {
      std::unique_lock lock(mutex_);
      if (wake_.wait_for(lock, kLook, [this] { return stopped_; })) return;
      why = host_->failure();
      for (const auto& channel : channels_)
        if (auto held = channel.lock()) alive.push_back(std::move(held));
    }
    try {
      use_device();
      if (!why.empty() && !failed) {
        failed = true;
        for (const auto& channel : alive) channel->fail(why);
      }
      for (const auto& channel : alive) {
        why = channel->look(timeout_);
        if (why.empty()) continue;
        failed = true;
        fail(why);
      }
    } catch (const base::Error& e) {
      failed = true;
      fail(e.what());
    }
  }
}

}  // namespace trireme::comm
