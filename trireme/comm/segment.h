#pragma once
// Segment: the memory through which the ranks of one host communicate, and where each of them
// sleeps and is woken.
//
// It is a memfd, so it has no name: nothing is left when its last process ends, however that
// happens. It starts with a record of the job's failure and a block for each rank of the job,
// followed by one arena for each rank of this host (see arena.h). Places are given as offsets from
// its start, since processes map it at different addresses. When all ranks share one process, any
// address of that process is such an offset, so ranks reach each other's memory without a copy:
// backends `threads` and `shm` are one algorithm over a segment. It holds no locks: a rank that is
// killed at any point leaves nothing that could block another.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace trireme::comm {

/// Where one waiter sleeps until somebody rings, across processes. Usage of the waiter: arm, look
/// once more, sleep, disarm. Whoever rings has changed (seq_cst) what the waiter looks at.
class Bell {
 public:
  uint32_t arm() {
    sleepers_.fetch_add(1);
    return rings_.load();
  }
  void disarm() { sleepers_.fetch_sub(1); }
  /// Returns when it rang since `arm` gave `seen`, after `limit`, or without a reason.
  void sleep(uint32_t seen, std::chrono::nanoseconds limit);
  void ring();

 private:
  std::atomic<uint32_t> rings_{0}, sleepers_{0};
};

class Segment {
 public:
  struct RankBlock {
    alignas(64) Bell bell;
    /// Messages to this rank, newest first: offset of the latest, each linked to the one before.
    alignas(64) std::atomic<uint64_t> inbox{0};
    /// Blocks of this rank's arena that other ranks give back, linked likewise.
    alignas(64) std::atomic<uint64_t> returned{0};
    /// Set while the rank touches memory of its peers.
    alignas(64) std::atomic<uint32_t> busy{0};
    /// Set when the rank has ended in good order.
    std::atomic<uint32_t> left{0};
    std::atomic<int> process{0};
    /// Which arena is the rank's; -1: the rank runs on another host.
    int arena = -1;
  };

  /// A new segment of a job of `ranks`, of which `here` run on this host. `one_process`: these all
  /// live in the calling process.
  static std::shared_ptr<Segment> create(int ranks, std::span<const int> here, bool one_process);
  /// Maps the segment behind `fd` (which stays the caller's).
  static std::shared_ptr<Segment> attach(int fd);
  Segment(const Segment&) = delete;
  ~Segment();

  int ranks() const;
  /// The memfd, to pass on to other processes.
  int fd() const { return fd_; }
  RankBlock& rank(int rank) const;
  /// Whether a rank runs on this host.
  bool here(int rank) const { return this->rank(rank).arena >= 0; }
  uint64_t arena_begin(int rank) const;
  uint64_t arena_size() const;

  template <class T = std::byte>
  T* at(uint64_t offset) const {
    return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(base_) + offset);
  }
  uint64_t offset_of(const void* address) const {
    return reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(base_);
  }
  /// Whether every rank reaches the caller's memory [address, address + bytes).
  bool reachable(const void* address, size_t bytes) const {
    uint64_t begin = offset_of(address);
    return one_process_ || (begin < size_ && bytes <= size_ - begin);
  }

  /// Records the job's failure (the first one stays) and wakes everybody. `rank` is the one to
  /// blame.
  void fail(int rank, const std::string& why);
  void fail(const std::string& text);
  bool failed() const;
  /// The text of the recorded failure.
  std::string failure() const;

 private:
  struct Header;
  Segment(int fd, bool one_process);
  int fd_ = -1;
  bool one_process_ = false;
  std::byte* base_ = nullptr;
  size_t size_ = 0;
};

/// The first word of every block that travels through a RankBlock's linked lists.
struct Link {
  uint64_t next = 0;
};
/// Puts the block at `offset` on a list; any rank, no locks.
void push(const Segment& segment, std::atomic<uint64_t>& list, uint64_t offset);

}  // namespace trireme::comm
