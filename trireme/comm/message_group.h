#pragma once
// MessageGroup: the collectives of a group whose ranks are on several hosts.
//
// Everything is messages: within a host through shared memory, between hosts through the wire. The
// members in group order form runs of neighbours on one host. A reduction is cut into lanes; in
// each run one member works for a lane: it adds its neighbours' contributions, in rank order, to
// what the run before came to, and passes that on. So every byte crosses to a host once as a
// partial sum and once as a result, and the sum is that of the flat order bit for bit. 16-bit
// floats travel as fp32 between runs. Small reductions send everything to everybody. Gathers and
// broadcasts enter each run once, at one member, which passes them on. Large operations go in
// pieces; a few are under way at a time, so a slow member is not flooded.
//
// Each algorithm is one coroutine that pauses where it waits for a message.

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/comm/collective.h"
#include "trireme/comm/endpoint.h"

namespace trireme::comm {

class MessageGroup : public Group, public Task, public std::enable_shared_from_this<MessageGroup> {
 public:
  /// `ranks` are world ranks, among them the endpoint's; `hosts` the numbers of their hosts. `id`
  /// is the same on all members and no other group's.
  MessageGroup(std::shared_ptr<Endpoint> endpoint, std::vector<int> ranks,
               const std::vector<int>& hosts, std::string name, uint64_t id);
  ~MessageGroup() override;

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
  /// What a message is within an operation.
  enum class Channel : uint8_t { contribution, partial, result, receipt };
  struct Run {
    int begin, size;  // members
  };
  /// How data spreads from a root: one member of each run has it from another run and passes it on.
  struct Tree {
    int root, lane;
    bool chain;  // from run to run; else from the root to each
  };
  /// Bytes of a buffer that one lane reduces or one member's part.
  struct Slice {
    int64_t begin, bytes;
  };
  class Collective;
  class Steps;
  class Held;
  struct Next;
  friend class Collective;

  Work enqueue(std::shared_ptr<Collective> op);
  Steps exchange(Collective& op);
  Steps reduce(Collective& op);
  Steps spread(Collective& op);
  Steps all_to_all(Collective& op);

  int run_of(int member) const { return run_of_[member]; }
  int worker(int run, int lane) const { return runs_[run].begin + lane % runs_[run].size; }
  int parent(const Tree& tree) const;
  std::vector<int> children(const Tree& tree) const;

  Message* draft(const Collective& op, Channel channel, int lane, int64_t bytes) const;
  void post(int member, Message* message) const;
  void post(const Collective& op, int member, Channel channel, int lane, const std::byte* data,
            int64_t bytes) const;
  Next next(Collective& op, int member, Channel channel, int lane, int64_t bytes) const;
  void compare(const Collective& op, const Message& message) const;

  std::shared_ptr<Endpoint> endpoint_;
  std::vector<int> ranks_;
  int members_, me_ = 0;
  std::string name_;
  uint64_t id_;
  std::vector<Run> runs_;
  std::vector<int> run_of_;
  int widest_ = 0;  // members of the largest run

  std::deque<std::shared_ptr<Collective>> queue_;
  uint64_t sequence_ = 0;  // of the operation at the front
};

}  // namespace trireme::comm
