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

/// A rank lives as long as `own`, the only writing end of its pipe, is open; `peers[i]` is the
/// reading end of the host's i-th rank's.
struct Lifelines {
  Descriptor own;
  std::vector<Descriptor> peers;
};

/// What the ranks of one host share.
struct Place {
  std::shared_ptr<Segment> segment;
  Lifelines lines;
};

class ShmBackend : public SegmentBackend {
 public:
  ShmBackend(Place place, int rank, std::vector<int> here, std::vector<int> hosts,
             std::shared_ptr<Wire> wire, std::chrono::milliseconds timeout)
      : SegmentBackend(std::move(place.segment), rank, timeout, std::move(hosts), std::move(wire)),
        here_(std::move(here)),
        lines_(std::move(place.lines)),
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
      for (size_t i = 0; i < here_.size(); ++i) {
        pollfd& wait = waits[i + 1];
        if (wait.revents == 0) continue;
        wait = {-1, 0, 0};
        int r = here_[i];
        auto& peer = endpoint_->segment().rank(r);
        if (peer.left.load() != 0) continue;
        endpoint_->segment().fail(r,
                                  fmt::format("died: its process {} ended", peer.process.load()));
        peer.left = 1;
      }
    }
  }

  std::vector<int> here_;
  Lifelines lines_;
  Descriptor stop_;
  std::thread watcher_;
};

std::pair<Descriptor, Descriptor> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw base::IoError("pipe", errno, "open");
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

// The host's first rank makes the memory and the pipes and hands them out.
Place lead(const std::vector<int>& here, int size, Store& store, const std::string& key,
           std::chrono::milliseconds timeout) {
  auto limit = std::chrono::steady_clock::now() + timeout;
  auto segment = Segment::create(size, here, false);
  std::vector<Descriptor> reading, writing;
  for (size_t i = 0; i < here.size(); ++i) {
    auto [read, write] = make_pipe();
    reading.push_back(std::move(read));
    writing.push_back(std::move(write));
  }
  std::string address;
  Descriptor socket = listen_local(address);
  store.set(key, address);

  std::vector<int> absent(here.begin() + 1, here.end());
  while (!absent.empty()) {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        limit - std::chrono::steady_clock::now());
    auto connection = accept_local(socket.get(), std::max(left, std::chrono::milliseconds(0)));
    if (!connection)
      throw base::CommError(fmt::format(
          "rank {} waited {:.1f} s for ranks {} to connect; they have not started or have ended",
          here[0], static_cast<double>(timeout.count()) / 1000, fmt::join(absent, " ")));
    auto hello = receive_packet(connection->get(), std::chrono::seconds(5));
    int rank = -1;
    if (hello) std::from_chars(hello->text.data(), hello->text.data() + hello->text.size(), rank);
    auto place = std::find(absent.begin(), absent.end(), rank);
    if (place == absent.end())
      throw base::CommError(
          fmt::format("two processes say that they are rank {} of {}, or it is none; each needs a "
                      "RANK of its own",
                      rank, size));
    auto& line = writing[std::find(here.begin(), here.end(), rank) - here.begin()];
    std::vector<int> descriptors{segment->fd(), line.get()};
    for (const Descriptor& end : reading) descriptors.push_back(end.get());
    if (!send_packet(connection->get(), std::to_string(size), descriptors))
      throw base::CommError(fmt::format("rank {} ended while it connected", rank));
    line = Descriptor();
    absent.erase(place);
  }
  Lifelines lines{std::move(writing[0]), std::move(reading)};
  lines.peers[0] = Descriptor();
  return {std::move(segment), std::move(lines)};
}

Place join(int rank, const std::vector<int>& here, int size, Store& store, const std::string& key,
           std::chrono::milliseconds timeout) {
  Descriptor socket = connect_local(store.get(key, timeout));
  std::optional<Packet> welcome;
  if (send_packet(socket.get(), std::to_string(rank)))
    welcome = receive_packet(socket.get(), timeout);
  if (!welcome || welcome->descriptors.size() != here.size() + 2 ||
      welcome->text != std::to_string(size))
    throw base::CommError(fmt::format(
        "rank {} of {} was not admitted by rank {}: that rank ended, or the ranks differ in "
        "WORLD_SIZE or RANK",
        rank, size, here[0]));
  auto& received = welcome->descriptors;
  auto segment = Segment::attach(received[0].get());
  Lifelines lines{std::move(received[1]), {}};
  for (size_t i = 0; i < here.size(); ++i)
    lines.peers.push_back(here[i] == rank ? Descriptor() : std::move(received[i + 2]));
  return {std::move(segment), std::move(lines)};
}

}  // namespace

std::unique_ptr<Backend> make_shm_backend(int rank, std::vector<int> hosts, Store& store,
                                          std::shared_ptr<Wire> wire,
                                          std::chrono::milliseconds timeout) {
  constexpr size_t kMost = 128;
  const int size = static_cast<int>(hosts.size());
  std::vector<int> here;
  for (int r = 0; r < size; ++r)
    if (rank >= 0 && rank < size && hosts[r] == hosts[rank]) here.push_back(r);
  if (here.empty() || here.size() > kMost)
    throw base::ConfigError(
        fmt::format("rank {} of {}, {} of them on this host: expected up to {} ranks on a host, "
                    "numbered from 0",
                    rank, size, here.size(), kMost));
  base::check(wire != nullptr || here.size() == hosts.size(), "several hosts without a wire");
  // A job may connect more than once; the ranks' rounds have a key each.
  std::string key =
      fmt::format("shm/{}/{}", here[0], store.add(fmt::format("shm/rounds/{}", rank), 1));
  Place place = rank == here[0] ? lead(here, size, store, key, timeout)
                                : join(rank, here, size, store, key, timeout);
  return std::make_unique<ShmBackend>(std::move(place), rank, std::move(here), std::move(hosts),
                                      std::move(wire), timeout);
}

std::unique_ptr<Backend> make_shm_backend(int rank, int size, Store& store,
                                          std::chrono::milliseconds timeout) {
  return make_shm_backend(rank, std::vector<int>(std::max(size, 0), 0), store, nullptr, timeout);
}

}  // namespace trireme::comm
