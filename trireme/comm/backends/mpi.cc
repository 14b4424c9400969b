#include "trireme/comm/backends/mpi.h"

// The C interface alone.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/comm/backends/shm.h"
#include "trireme/comm/host.h"

namespace trireme::comm {
namespace {

using namespace std::chrono_literals;

constexpr int kHead = 1, kPayload = 2;       // MPI's tags
constexpr int64_t kInline = 8 << 10;         // payloads up to this travel with their frame
constexpr int64_t kPart = int64_t{1} << 30;  // MPI counts in int
constexpr int kLooks = 50;                   // without success before the wire's thread rests

// MPI is one a process by nature.
std::atomic<bool> failed_for_good{false};  // then it is not ended, since that would wait for peers

void expect(int code, const char* doing) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int size = 0;
  MPI_Error_string(code, text, &size);
  throw base::CommError(fmt::format("MPI could not {}: {}", doing, text));
}

void begin() {
  int begun = 0, level = 0;
  MPI_Initialized(&begun);
  if (begun == 0) {
    expect(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level), "start");
    std::atexit([] {
      if (!failed_for_good) MPI_Finalize();
    });
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  }
  MPI_Query_thread(&level);
  if (level < MPI_THREAD_SERIALIZED)
    throw base::ConfigError(
        "this MPI serves the thread that started it only (MPI_THREAD_SERIALIZED is not provided); "
        "use one that is built with threads");
}

class MpiWire : public Wire {
 public:
  MpiWire(MPI_Comm comm, std::vector<int> peers) : Wire(std::move(peers)), comm_(comm) { listen(); }

 private:
  /// The frame and a small payload.
  using Head = std::array<std::byte, sizeof(Frame) + kInline>;

  struct Sending {
    Outgoing outgoing;
    std::vector<std::byte> head;
    std::vector<MPI_Request> requests;
  };
  struct Receiving {
    Frame frame;
    Message* message = nullptr;
    std::vector<MPI_Request> requests = {};
  };

  void listen() {
    expect(MPI_Irecv(head_.data(), static_cast<int>(head_.size()), MPI_BYTE, MPI_ANY_SOURCE, kHead,
                     comm_, &next_),
           "receive");
  }

  void transmit(int peer, Outgoing outgoing) override {
    Sending& sending = sending_.emplace_back();
    const int64_t bytes = outgoing.frame.bytes;
    sending.head.resize(sizeof(Frame) + (bytes <= kInline ? bytes : 0));
    std::memcpy(sending.head.data(), &outgoing.frame, sizeof(Frame));
    if (bytes > 0 && bytes <= kInline)
      std::memcpy(sending.head.data() + sizeof(Frame), outgoing.payload, bytes);
    send(sending, peer, kHead, sending.head.data(), static_cast<int64_t>(sending.head.size()));
    for (int64_t at = 0; bytes > kInline && at < bytes; at += kPart)
      send(sending, peer, kPayload, outgoing.payload + at, std::min(kPart, bytes - at));
    sending.outgoing = std::move(outgoing);
  }

  void send(Sending& sending, int peer, int tag, const std::byte* data, int64_t bytes) {
    sending.requests.push_back(MPI_REQUEST_NULL);
    expect(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, comm_,
                     &sending.requests.back()),
           "send");
  }

  /// What a peer still sends would stay under way if this rank went first.
  bool drained() const override {
    return sending_.empty() && (!stopping() || goodbyes_ == peers().size());
  }

  void wake() override {
    std::lock_guard lock(mutex_);
    woken_ = true;
    rest_.notify_one();
  }

  // MPI does not wake anybody: the wire looks again and again, less often when nothing is awaited.
  void progress() override {
    bool moved = receive();
    moved |= finish_sends();
    idle_ = moved ? 0 : idle_ + 1;
    if (idle_ < kLooks && busy()) return std::this_thread::yield();
    std::unique_lock lock(mutex_);
    auto rest = busy() || !drained() ? 50us : 1000us;
    rest_.wait_for(lock, rest, [&] { return woken_; });
    woken_ = false;
  }

  bool receive() {
    bool moved = false;
    for (int there = 0;; moved = true) {
      expect(MPI_Test(&next_, &there, MPI_STATUS_IGNORE), "receive");
      if (there == 0) break;
      arrive();
      listen();
    }
    // What a rank has sent is delivered in its order.
    for (auto& [_, queue] : receiving_)
      while (!queue.empty() && complete(queue.front().requests)) {
        Receiving& first = queue.front();
        if (first.message != nullptr) {
          deliver(first.message);
        } else {
          hear(first.frame, "");
          ++goodbyes_;
        }
        queue.pop_front();
        moved = true;
      }
    return moved;
  }

  void arrive() {
    Receiving arriving;
    std::memcpy(&arriving.frame, head_.data(), sizeof(Frame));
    const Frame& frame = arriving.frame;
    const std::byte* payload = head_.data() + sizeof(Frame);
    if (frame.kind == Frame::failure)
      return hear(frame, std::string(reinterpret_cast<const char*>(payload), frame.bytes));
    if (frame.kind == Frame::message) {
      arriving.message = draft(frame);
      if (frame.bytes <= kInline)
        std::memcpy(arriving.message->own_payload(), payload, frame.bytes);
      for (int64_t at = 0; frame.bytes > kInline && at < frame.bytes; at += kPart) {
        arriving.requests.push_back(MPI_REQUEST_NULL);
        expect(MPI_Irecv(arriving.message->own_payload() + at,
                         static_cast<int>(std::min(kPart, frame.bytes - at)), MPI_BYTE,
                         frame.source, kPayload, comm_, &arriving.requests.back()),
               "receive");
      }
    }
    receiving_[frame.source].push_back(std::move(arriving));
  }

  bool finish_sends() {
    size_t before = sending_.size();
    sending_.remove_if([&](Sending& sending) {
      if (!complete(sending.requests)) return false;
      sent(sending.outgoing);
      return true;
    });
    return sending_.size() != before;
  }

  static bool complete(std::vector<MPI_Request>& requests) {
    int all = 1;
    if (!requests.empty())
      expect(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &all,
                         MPI_STATUSES_IGNORE),
             "finish an operation");
    return all != 0;
  }

  void disconnect() override {
    MPI_Cancel(&next_);
    MPI_Wait(&next_, MPI_STATUS_IGNORE);
    bool under_way = !sending_.empty() || std::ranges::any_of(receiving_, [](const auto& from) {
      return !from.second.empty();
    });
    if (!under_way) return;
    // MPI may still touch these; the process is about to end with an error.
    failed_for_good = true;
    new auto(std::pair(std::move(sending_), std::move(receiving_)));
    keep_memory();
  }

  MPI_Comm comm_;
  Head head_;
  MPI_Request next_ = MPI_REQUEST_NULL;
  std::list<Sending> sending_;
  std::map<int, std::deque<Receiving>> receiving_;
  size_t goodbyes_ = 0;
  int idle_ = 0;

  std::mutex mutex_;
  std::condition_variable rest_;
  bool woken_ = false;
};

// MPI itself waits at full speed, on cores that late ranks may need.
void await(MPI_Request request) {
  for (int done = 0; done == 0;) {
    expect(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "gather texts");
    if (done == 0) std::this_thread::sleep_for(100us);
  }
}

std::vector<std::string> all_gather(MPI_Comm comm, const std::string& own) {
  int size = 0, length = static_cast<int>(own.size());
  MPI_Comm_size(comm, &size);
  std::vector<int> lengths(size), begins(size);
  MPI_Request request = MPI_REQUEST_NULL;
  expect(MPI_Iallgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, comm, &request),
         "gather texts");
  await(request);
  std::exclusive_scan(lengths.begin(), lengths.end(), begins.begin(), 0);
  std::string all(static_cast<size_t>(begins.back() + lengths.back()), '\0');
  expect(MPI_Iallgatherv(own.data(), length, MPI_CHAR, all.data(), lengths.data(), begins.data(),
                         MPI_CHAR, comm, &request),
         "gather texts");
  await(request);
  std::vector<std::string> texts;
  for (int r = 0; r < size; ++r) texts.push_back(all.substr(begins[r], lengths[r]));
  return texts;
}

}  // namespace

std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int size = 0;
  MPI_Get_library_version(text, &size);
  std::string version(text);
  return version.substr(0, version.find_first_of(",\n"));
}

std::unique_ptr<Backend> make_mpi_backend(std::chrono::milliseconds timeout, int size) {
  begin();
  int world = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  if (size == 0) size = world;
  if (size < 0 || size > world)
    throw base::ConfigError(fmt::format(
        "the launcher has started {} ranks, of which {} sees {}: start them with the mpirun of that "
        "MPI (or srun --mpi=pmix), or set TRIREME_TRANSPORT=tcp",
        size, mpi_version(), world));
  // A communicator of its own for each backend, so that nothing is left over from one before.
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Group everybody, group;
  int first[1][3] = {{0, size - 1, 1}};
  MPI_Comm_group(MPI_COMM_WORLD, &everybody);
  MPI_Group_range_incl(everybody, 1, first, &group);
  expect(MPI_Comm_create_group(MPI_COMM_WORLD, group, 0, &comm), "connect the ranks");
  MPI_Group_free(&group);
  MPI_Group_free(&everybody);
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);

  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  std::vector<int> hosts = number_hosts(all_gather(comm, host_identity()));
  // The first rank of each host serves a store to the others, through which they come to share
  // memory.
  const auto leader = std::ranges::find(hosts, hosts[rank]) - hosts.begin();
  std::optional<StoreServer> server;
  if (leader == rank) server.emplace();
  std::vector<std::string> addresses = all_gather(comm, server ? server->address() : "");
  if (server) server->serve();
  auto store = connect_store(addresses[leader]);
  std::vector<int> peers;
  for (int r = 0; r < size; ++r)
    if (hosts[r] != hosts[rank]) peers.push_back(r);
  auto wire = peers.empty() ? nullptr : std::make_shared<MpiWire>(comm, peers);
  auto backend = make_shm_backend(rank, hosts, *store, wire, timeout);
  // The stores have served once all are connected.
  std::vector<int> all(size);
  std::iota(all.begin(), all.end(), 0);
  backend->make(all, "start").barrier();
  return backend;
}

std::vector<std::string> mpi_all_gather(const std::string& own) {
  begin();
  return all_gather(MPI_COMM_WORLD, own);
}

}  // namespace trireme::comm
