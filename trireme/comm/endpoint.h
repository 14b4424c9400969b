#pragma once
// Endpoint: one rank's place at a segment. It keeps the rank's operations in flight and moves them
// on.
//
// An operation is a state machine that never blocks: `step` does what can be done now. Whoever
// waits for one drives all of them; while nobody waits, a progress thread does, so operations
// advance while the rank computes. It sleeps on a futex when there is nothing to do. A wait looks a
// few times, yields, then sleeps, since ranks may outnumber cores. Point-to-point messages are
// handled here; collectives are in segment_group.h and message_group.h. Ranks of other hosts are
// reached through a wire (wire.h).
//
// The first error ends the job: it is recorded in the segment, all operations of all ranks fail
// with it, and when a wait has thrown, no peer touches this rank's buffers any more.

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "trireme/comm/arena.h"
#include "trireme/comm/comm.h"
#include "trireme/comm/message.h"
#include "trireme/comm/segment.h"
#include "trireme/comm/wire.h"

namespace trireme::comm {

class Endpoint;

/// An operation in flight.
class Op : public Work::State {
 public:
  explicit Op(std::shared_ptr<Endpoint> endpoint) : endpoint_(std::move(endpoint)) {}
  void wait() override;
  bool done() override;
  void abandon() override;
  /// What it is, for errors: "all_reduce of 12 fp32 in group 'dp' (ranks 0 2)".
  virtual std::string describe() const = 0;
  /// The world ranks it cannot go on without. Called by the endpoint.
  virtual std::vector<int> awaited() const = 0;

  bool finished() const { return finished_.load(std::memory_order_acquire); }
  /// Ends the operation; with a text, in failure. Called by the endpoint and by tasks.
  void finish(std::string error = "");

 private:
  friend class Endpoint;
  std::shared_ptr<Endpoint> endpoint_;
  std::string error_;
  std::atomic<bool> finished_{false};
};

/// What an endpoint drives: an operation or a queue of them.
class Task {
 public:
  enum class Step { idle, moved, finished };
  virtual ~Task() = default;
  /// A bounded piece of work. CommError ends the job.
  virtual Step step() = 0;
  /// Finishes all of its operations with `why`.
  virtual void fail(const std::string& why) = 0;
};

class Endpoint : public std::enable_shared_from_this<Endpoint> {
 public:
  Endpoint(std::shared_ptr<Segment> segment, int rank, std::chrono::milliseconds timeout);
  ~Endpoint();
  /// Connects the ranks of other hosts; before the first operation.
  void attach(std::shared_ptr<Wire> wire);
  /// Ends in good order: later operations fail, and peers that wait for this rank are told that it
  /// left.
  void close();

  Segment& segment() const { return *segment_; }
  const std::shared_ptr<Segment>& shared_segment() const { return segment_; }
  Arena& arena() { return *arena_; }
  int rank() const { return rank_; }
  SharedBuffer alloc(size_t bytes);

  /// Messages between world ranks; `group` separates those of different groups, `name` is for
  /// errors. A message in reachable memory of some size is read from there by the receiver, others
  /// are copied at once.
  Work send(const void* data, int64_t bytes, int peer, uint64_t tag, uint64_t group,
            const std::string& name);
  Work receive(void* data, int64_t bytes, int peer, uint64_t tag, uint64_t group,
               const std::string& name);

  /// Messages for tasks. `draft` makes one to fill in, of any thread; `post` sends it and gives it
  /// away. `take` yields the next one that has arrived from a world rank, or null; in steps only.
  /// Who took one gives it back with `release`.
  Message* draft(uint64_t group, uint64_t tag, int64_t bytes);
  void post(int peer, Message* message);
  Message* take(uint64_t group, int peer, uint64_t tag);
  void release(Message* message);

  /// Runs `enqueue`, which makes one new operation known to a task and returns the task if that is
  /// new too, and does at once what can be done.
  void start(const std::function<std::shared_ptr<Task>()>& enqueue);
  /// Fails the job.
  void abort(const std::string& why) { segment_->fail(rank_, why); }

 private:
  friend class Op;
  class Receive;
  class Send;
  class Caller;
  using Key = std::tuple<uint64_t, int, uint64_t>;  // group, peer, tag

  void wait(Op& op);
  bool poll();
  bool take_messages();
  void fail_all();
  void check_peers(Op& op, std::chrono::steady_clock::time_point since);
  void await_quiet_peers();
  void run_progress();

  bool has_left(int rank) const;

  std::shared_ptr<Segment> segment_;
  std::shared_ptr<Arena> arena_;
  std::shared_ptr<Wire> wire_;  // null: all ranks are on this host
  int rank_;
  std::chrono::milliseconds timeout_;

  std::mutex mutex_;  // guards everything down to closed_, and steps
  std::vector<std::shared_ptr<Task>> tasks_;
  std::map<Key, std::deque<Message*>> arrived_;
  std::map<Key, std::deque<std::shared_ptr<Receive>>> expected_;
  bool closed_ = false;

  std::atomic<int> pending_{0};  // operations in flight
  std::atomic<int> callers_{
      0};  // threads of the rank that are inside; the progress thread leaves them alone
  std::atomic<bool> asleep_{false}, stop_{false};
  Bell nap_;  // where the progress thread sleeps when it has nothing to do
  std::thread progress_;
};

}  // namespace trireme::comm
