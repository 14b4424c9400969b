#pragma once
// SegmentGroup: the collectives of one group over a segment.
//
// A collective runs in pieces of up to 256 KiB a rank. Each rank has two counters that only grow
// over the group's life: `ready` (pieces it has exposed) and `done` (pieces it needs nothing of any
// more). A rank exposes a piece by copying it into its staging area, a ring of a few pieces, or at
// once as a whole where its peers reach its memory. It takes its share of a piece when all are
// ready. With a large all-reduce each rank reduces its slice of a piece and writes the result to
// all; otherwise each only reads. The operations of a group run one after the other.

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/comm/collective.h"
#include "trireme/comm/endpoint.h"

namespace trireme::comm {

class SegmentGroup : public Group, public Task, public std::enable_shared_from_this<SegmentGroup> {
 public:
  /// Bytes of the block that the group's members share; the first of them allocates and initialises
  /// it.
  static size_t block_size(int members);
  static void initialise(void* block, int members);
  /// `block` is the shared block's offset; `ranks` are world ranks, among them the endpoint's.
  SegmentGroup(std::shared_ptr<Endpoint> endpoint, std::vector<int> ranks, std::string name,
               uint64_t block);
  ~SegmentGroup() override;

  Work all_reduce(void* data, int64_t count, DType, Reduce) override;
  Work reduce_scatter(const void* in, void* out, std::span<const int64_t> counts, DType,
                      Reduce) override;
  Work all_gather(const void* in, void* out, std::span<const int64_t> counts, DType) override;
  Work broadcast(void* data, int64_t count, DType, int root) override;
  Work all_to_all(const void* in, std::span<const int64_t> send_counts, void* out,
                  std::span<const int64_t> recv_counts, DType) override;
  Work isend(const void* data, int64_t bytes, int peer, uint64_t tag) override;
  Work irecv(void* data, int64_t bytes, int peer, uint64_t tag) override;
  SharedBuffer alloc(size_t bytes) override;

  Step step() override;
  void fail(const std::string& why) override;

 private:
  using Kind = CollectiveKind;
  struct Block;
  struct Slot;
  struct Post;
  class Collective;
  friend class Collective;

  Work enqueue(std::shared_ptr<Collective> op);
  bool expose(Collective& op);
  bool consume(Collective& op);
  bool collect(Collective& op);
  bool complete(const Collective& op);
  void write_post(const Collective& op);
  void check_posts(Collective& op);
  void stage(const Collective& op, int64_t piece);
  void reduce_slice(const Collective& op, int64_t piece);

  Slot& slot(int member) const;
  Post& post(int member) const;
  int64_t* counts_of(int member) const;
  std::byte* staging(int member, uint64_t piece) const;
  /// Where a member's contribution to a piece lies: for everybody, or its part for this rank.
  std::byte* contribution(const Collective& op, int member, int64_t piece) const;
  std::pair<int64_t, int64_t> slice(int64_t bytes, int64_t element) const;
  int64_t part_bytes() const;
  bool all_reached(std::atomic<uint64_t> Slot::*counter, uint64_t& seen, uint64_t value) const;
  void advance(std::atomic<uint64_t> Slot::*counter, uint64_t value);
  std::vector<int> awaited() const;

  std::shared_ptr<Endpoint> endpoint_;
  Segment& segment_;
  std::vector<int> ranks_;
  int members_, me_ = 0;
  std::string name_;
  Block* block_;

  std::deque<std::shared_ptr<Collective>> queue_;
  uint64_t sequence_ = 0;                  // operations completed
  uint64_t base_ = 0;                      // pieces of all of those
  mutable uint64_t ready_ = 0, done_ = 0;  // what all members are known to have reached
};

}  // namespace trireme::comm
