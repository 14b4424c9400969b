#include "trireme/comm/backends/shm.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/comm/backends/segment_backend.h"
#include "trireme/comm/socket.h"

namespace trireme::comm {
namespace {

/// A rank lives as long as `own`, the only writing end of its pipe, is open; `peers[r]` is the
/// reading end of rank r's.
struct Lifelines {
  Descriptor own;
  std::vector<Descriptor> peers;
};

class ShmBackend : public SegmentBackend {
 public:
  ShmBackend(std::shared_ptr<Segment> segment, int rank, std::chrono::milliseconds timeout,
             Lifelines lines)
      : SegmentBackend(std::move(segment), rank, timeout),
        lines_(std::move(lines)),
        stop_(::eventfd(0, EFD_CLOEXEC)) {
    endpoint_->segment().rank(rank).process = ::getpid();
    watcher_ = std::thread([this] { watch(); });
  }
  ~ShmBackend() override {
    uint64_t one = 1;
    if (::write(stop_.get(), &one, sizeof one) == sizeof one) watcher_.join();
    endpoint_->close();  // before the lifeline closes: this rank leaves, it does not die
  }

 private:
  void watch() {
    std::vector<pollfd> waits{{stop_.get(), POLLIN, 0}};
    for (const Descriptor& peer : lines_.peers)
      waits.push_back({peer.get(), 0, 0});  // -1, the own one, is skipped
    for (;;) {
      if (::poll(waits.data(), waits.size(), -1) < 0) continue;
      if (waits[0].revents != 0) return;
      for (int r = 0; r < size(); ++r) {
        pollfd& wait = waits[r + 1];
        if (wait.revents == 0) continue;
        wait = {-1, 0, 0};
        auto& peer = endpoint_->segment().rank(r);
        if (peer.left.load() != 0) continue;
        endpoint_->segment().fail(r,
                                  fmt::format("died: its process {} ended", peer.process.load()));
        peer.left = 1;
      }
    }
  }

  Lifelines lines_;
  Descriptor stop_;
  std::thread watcher_;
};

std::pair<Descriptor, Descriptor> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw base::IoError("pipe", errno, "open");
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

// Rank 0 makes the memory and the pipes and hands them out.
std::unique_ptr<Backend> host(int size, Store& store, const std::string& key,
                              std::chrono::milliseconds timeout) {
  auto limit = std::chrono::steady_clock::now() + timeout;
  auto segment = Segment::create(size, false);
  std::vector<Descriptor> reading, writing;
  for (int r = 0; r < size; ++r) {
    auto [read, write] = make_pipe();
    reading.push_back(std::move(read));
    writing.push_back(std::move(write));
  }
  std::string address;
  Descriptor socket = listen_local(address);
  store.set(key, address);

  std::vector<int> absent(size - 1);
  for (int r = 1; r < size; ++r) absent[r - 1] = r;
  while (!absent.empty()) {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        limit - std::chrono::steady_clock::now());
    auto connection = accept_local(socket.get(), std::max(left, std::chrono::milliseconds(0)));
    if (!connection)
      throw base::CommError(
          fmt::format("rank 0 waited {:.1f} s for ranks {} to connect; they have not started or "
                      "have ended",
                      static_cast<double>(timeout.count()) / 1000, fmt::join(absent, " ")));
    auto hello = receive_packet(connection->get(), std::chrono::seconds(5));
    int rank = -1;
    if (hello) std::from_chars(hello->text.data(), hello->text.data() + hello->text.size(), rank);
    auto place = std::find(absent.begin(), absent.end(), rank);
    if (place == absent.end())
      throw base::CommError(
          fmt::format("two processes say that they are rank {} of {}, or it is none; each needs a "
                      "RANK of its own",
                      rank, size));
    std::vector<int> descriptors{segment->fd(), writing[rank].get()};
    for (const Descriptor& end : reading) descriptors.push_back(end.get());
    if (!send_packet(connection->get(), std::to_string(size), descriptors))
      throw base::CommError(fmt::format("rank {} ended while it connected", rank));
    writing[rank] = Descriptor();
    absent.erase(place);
  }
  Lifelines lines{std::move(writing[0]), std::move(reading)};
  lines.peers[0] = Descriptor();
  return std::make_unique<ShmBackend>(std::move(segment), 0, timeout, std::move(lines));
}

std::unique_ptr<Backend> join(int rank, int size, Store& store, const std::string& key,
                              std::chrono::milliseconds timeout) {
  Descriptor socket = connect_local(store.get(key, timeout));
  std::optional<Packet> welcome;
  if (send_packet(socket.get(), std::to_string(rank)))
    welcome = receive_packet(socket.get(), timeout);
  if (!welcome || static_cast<int>(welcome->descriptors.size()) != size + 2 ||
      welcome->text != std::to_string(size))
    throw base::CommError(fmt::format(
        "rank {} of {} was not admitted by rank 0: rank 0 ended, or the ranks differ in "
        "WORLD_SIZE or RANK",
        rank, size));
  auto& received = welcome->descriptors;
  auto segment = Segment::attach(received[0].get());
  Lifelines lines{std::move(received[1]), {}};
  for (int r = 0; r < size; ++r)
    lines.peers.push_back(r == rank ? Descriptor() : std::move(received[r + 2]));
  return std::make_unique<ShmBackend>(std::move(segment), rank, timeout, std::move(lines));
}

}  // namespace

std::unique_ptr<Backend> make_shm_backend(int rank, int size, Store& store,
                                          std::chrono::milliseconds timeout) {
  constexpr int kMost = 128;
  if (size < 1 || size > kMost || rank < 0 || rank >= size)
    throw base::ConfigError(fmt::format(
        "rank {} of {}: expected up to {} ranks on a host, numbered from 0", rank, size, kMost));
  // A job may connect more than once; the ranks' rounds have a key each.
  std::string key = fmt::format("shm/{}", store.add(fmt::format("shm/rounds/{}", rank), 1));
  return rank == 0 ? host(size, store, key, timeout) : join(rank, size, store, key, timeout);
}

}  // namespace trireme::comm
