#pragma once
// Comm: an ordered set of ranks with collectives and point-to-point messages on raw contiguous
// buffers.
//
// A Comm is a cheap handle; copies refer to the same group. Size 1 is the identity. Every call on a
// group is collective unless said otherwise: all its ranks call the same operations in the same
// order. Each operation returns a Work; buffers must stay untouched until its wait() returns.
// Asynchronous operations progress while the caller computes. Reductions run in rank order with
// fp32 accumulation for 16-bit types, so results are bit-identical from run to run and between
// backends.
//
//   Work work = dp.all_reduce(grad.data(), n, DType::f32);  ...compute...  work.wait();

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/dtype.h"

namespace trireme::comm {

using base::DType;

enum class Reduce : uint8_t { sum, max };

/// An operation in flight. Destroying it unwaited is allowed; the operation still completes. When
/// an exception destroys it, buffers go too: then the job fails, and nobody touches the buffers any
/// more.
class Work {
 public:
  class State {
   public:
    virtual ~State() = default;
    virtual void wait() = 0;
    virtual bool done() = 0;
    virtual void abandon() = 0;
  };
  Work() = default;  // already complete
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}
  Work(const Work&) = default;
  Work(Work&&) = default;
  Work& operator=(const Work&) = default;
  Work& operator=(Work&&) = default;
  ~Work() {
    if (state_ && std::uncaught_exceptions() > 0) state_->abandon();
  }
  /// Returns when the buffers may be used again. Throws CommError (op, group, rank, peer, waited)
  /// when a peer died, the job was aborted or the deadline passed.
  void wait() {
    if (state_) state_->wait();
  }
  bool done() { return !state_ || state_->done(); }

 private:
  std::shared_ptr<State> state_;
};

/// Bytes moved by one rank, counted per kind of operation (payload, not protocol; of messages those
/// it sent). A group of one moves nothing.
struct Traffic {
  int64_t all_reduce = 0, reduce_scatter = 0, all_gather = 0, broadcast = 0, all_to_all = 0,
          p2p = 0;
};

/// Memory that all ranks of the host can read where the backend shares memory; plain memory
/// otherwise. Collectives on buffers that lie wholly inside such memory are reduced without copies.
class SharedBuffer {
 public:
  SharedBuffer() = default;
  SharedBuffer(std::byte* data, size_t size, std::shared_ptr<void> owner)
      : data_(data), size_(size), owner_(std::move(owner)) {}
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  const std::shared_ptr<void>& owner() const { return owner_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::shared_ptr<void> owner_;
};

/// What a backend implements for one group. Counts are elements; offsets follow from them.
class Group {
 public:
  virtual ~Group() = default;
  virtual Work all_reduce(void* data, int64_t count, DType, Reduce) = 0;
  virtual Work reduce_scatter(const void* in, void* out, std::span<const int64_t> counts, DType,
                              Reduce) = 0;
  virtual Work all_gather(const void* in, void* out, std::span<const int64_t> counts, DType) = 0;
  virtual Work broadcast(void* data, int64_t count, DType, int root) = 0;
  virtual Work all_to_all(const void* in, std::span<const int64_t> send_counts, void* out,
                          std::span<const int64_t> recv_counts, DType) = 0;
  virtual Work isend(const void* data, int64_t bytes, int peer, uint64_t tag) = 0;
  virtual Work irecv(void* data, int64_t bytes, int peer, uint64_t tag) = 0;
  virtual SharedBuffer alloc(size_t bytes) = 0;
  // Of groups whose ranks have GPUs.
  virtual bool takes_device_memory() const { return false; }
  virtual void connect() {}
};

class Comm {
 public:
  /// The group of one rank.
  Comm();
  /// Made by a Backend. `ranks` are world ranks in group order; `rank` is the index of the caller's
  /// own.
  Comm(std::vector<int> ranks, int rank, std::string name, std::shared_ptr<Group> group);

  int rank() const;
  int size() const;
  /// World ranks in group order.
  const std::vector<int>& ranks() const;
  const std::string& name() const;

  /// data[i] = reduction over ranks, in place.
  Work all_reduce(void* data, int64_t count, DType, Reduce = Reduce::sum) const;
  /// `in` holds sum(counts) elements; `out` receives the caller's counts[rank()] reduced ones.
  /// `out` may be the caller's own part of `in`.
  Work reduce_scatter(const void* in, void* out, std::span<const int64_t> counts, DType,
                      Reduce = Reduce::sum) const;
  /// `in` holds counts[rank()] elements; `out` receives all, in rank order. `in` may be its own
  /// part of `out`.
  Work all_gather(const void* in, void* out, std::span<const int64_t> counts, DType) const;
  Work broadcast(void* data, int64_t count, DType, int root) const;
  /// send_counts[r] elements go to rank r, recv_counts[r] come from it; both buffers are packed in
  /// rank order.
  Work all_to_all(const void* in, std::span<const int64_t> send_counts, void* out,
                  std::span<const int64_t> recv_counts, DType) const;
  /// Returns when every rank has called it.
  void barrier() const;

  /// Point to point (not collective). Messages between two ranks match by tag, equal tags in order.
  /// isend never blocks whatever the size; a receive of another size than was sent is a CommError.
  Work isend(const void* data, int64_t bytes, int peer, uint64_t tag) const;
  Work irecv(void* data, int64_t bytes, int peer, uint64_t tag) const;

  /// Whether buffers may lie in the memory of this rank's GPU (on all ranks or on none).
  bool takes_device_memory() const;
  /// Makes ready the messages of device memory, between neighbours (the last rank and the first are
  /// neighbours too). Collective; messages of the host's memory need none of it.
  void connect() const;

  /// Memory of the host for gradient buckets and messages. Not collective.
  SharedBuffer alloc(size_t bytes) const;

  Traffic traffic() const;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

/// A rank's door to a communication backend; World owns one.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// The number of the host that a world rank runs on.
  virtual int host(int rank) const = 0;
  /// Collective over `ranks` (world ranks in group order, the caller among them). `name` is unique
  /// per group and appears in errors.
  virtual Comm make(std::vector<int> ranks, const std::string& name) = 0;
  /// Makes every pending and later operation of all ranks fail within a second, with `why` and this
  /// rank.
  virtual void abort(const std::string& why) = 0;
  /// Why operations of this rank fail; empty: they do not. Any thread may ask.
  virtual std::string failure() const { return ""; }
};

}  // namespace trireme::comm
