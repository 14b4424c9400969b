#include "trireme/comm/endpoint.h"

#include <algorithm>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/comm/waiting.h"

namespace trireme::comm {
namespace {
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr int64_t kLend =
    64 << 10;  // messages above this are read from the sender's memory if reachable
constexpr int64_t kCopyStep = 1 << 20;  // bytes of a message that one step copies
constexpr int kSpins = 20,
              kYields = 200;    // looks before sleeping; more collapses when ranks outnumber cores
constexpr auto kNap = 1ms;      // how late the progress thread may take over from a caller
constexpr auto kLinger = 20ms;  // after the last operation, before it sleeps until it is woken

thread_local Clock::duration waited{0};

double seconds(Clock::duration time) {
  return std::chrono::duration<double>(time).count();
}
}  // namespace

/// While it lives, a thread of the rank is inside, and the progress thread leaves the work to it.
class Endpoint::Caller {
 public:
  explicit Caller(Endpoint& endpoint) : endpoint_(endpoint) { ++endpoint_.callers_; }
  ~Caller() { --endpoint_.callers_; }

 private:
  Endpoint& endpoint_;
};

double waited_seconds() {
  return seconds(waited);
}

void Op::wait() {
  const Clock::time_point began = Clock::now();
  endpoint_->wait(*this);
  waited += Clock::now() - began;
}

bool Op::done() {
  if (finished()) return true;
  Endpoint::Caller caller(*endpoint_);
  endpoint_->poll();
  return finished();
}

void Op::abandon() {
  if (finished()) return;
  endpoint_->segment_->fail(endpoint_->rank_,
                            "ended with an error while operations were in flight");
  endpoint_->poll();  // finishes this rank's operations in failure
  endpoint_->await_quiet_peers();
}

void Op::finish(std::string error) {
  error_ = std::move(error);
  --endpoint_->pending_;
  finished_.store(true, std::memory_order_release);
}

class Endpoint::Receive : public Op, public Task {
 public:
  Receive(std::shared_ptr<Endpoint> endpoint, void* data, int64_t bytes, int peer, std::string name)
      : Op(endpoint),
        rank_(*endpoint),
        data_(static_cast<std::byte*>(data)),
        bytes_(bytes),
        peer_(peer),
        name_(std::move(name)) {}
  std::string describe() const override {
    return fmt::format("receive of {} bytes from rank {} in group '{}'", bytes_, peer_, name_);
  }
  std::vector<int> awaited() const override { return {peer_}; }
  void fail(const std::string& why) override { finish(describe() + why); }
  void match(Message* message) { message_ = message; }

  Step step() override {
    if (message_->bytes != bytes_)
      throw base::CommError(
          fmt::format("{}: the message has {} bytes; both ends must agree on the size", describe(),
                      message_->bytes));
    int64_t part = std::min(kCopyStep, bytes_ - copied_);
    if (part > 0)
      std::memcpy(data_ + copied_, rank_.segment_->at(message_->payload) + copied_, part);
    copied_ += part;
    if (copied_ < bytes_) return Step::moved;
    if (message_->lent) {
      message_->taken.store(1);
      rank_.segment_->rank(peer_).bell.ring();
    } else {
      rank_.release(message_);
    }
    finish();
    return Step::finished;
  }

 private:
  Endpoint& rank_;
  std::byte* data_;
  int64_t bytes_, copied_ = 0;
  int peer_;
  std::string name_;
  Message* message_ = nullptr;
};

/// A message whose payload is still in the sender's buffer.
class Endpoint::Send : public Op, public Task {
 public:
  Send(std::shared_ptr<Endpoint> endpoint, Message* message, int peer, std::string name)
      : Op(endpoint),
        rank_(*endpoint),
        message_(message),
        peer_(peer),
        name_(std::move(name)),
        what_(fmt::format("send of {} bytes to rank {} in group '{}'", message->bytes, peer,
                          name_)) {}
  std::string describe() const override { return what_; }
  std::vector<int> awaited() const override { return {peer_}; }
  void fail(const std::string& why) override { finish(what_ + why); }
  Step step() override {
    if (message_->taken.load() == 0) return Step::idle;
    rank_.arena_->free(reinterpret_cast<std::byte*>(message_));
    finish();
    return Step::finished;
  }

 private:
  Endpoint& rank_;
  Message* message_;
  int peer_;
  std::string name_, what_;
};

Endpoint::Endpoint(std::shared_ptr<Segment> segment, int rank, std::chrono::milliseconds timeout)
    : segment_(std::move(segment)),
      arena_(std::make_shared<Arena>(segment_, rank)),
      rank_(rank),
      timeout_(timeout) {
  progress_ = std::thread([this] { run_progress(); });
}

Endpoint::~Endpoint() {
  close();
}

void Endpoint::close() {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
    fail_all();
  }
  stop_ = true;
  nap_.ring();
  segment_->rank(rank_).bell.ring();
  progress_.join();
  segment_->rank(rank_).left = 1;
  for (int r = 0; r < segment_->ranks(); ++r) segment_->rank(r).bell.ring();
  if (wire_) wire_->close();
}

void Endpoint::attach(std::shared_ptr<Wire> wire) {
  wire_ = std::move(wire);
  wire_->start(segment_, arena_, rank_, pending_, timeout_);
}

bool Endpoint::has_left(int rank) const {
  return segment_->here(rank) ? segment_->rank(rank).left != 0 : wire_->left(rank);
}

SharedBuffer Endpoint::alloc(size_t bytes) {
  std::byte* data = arena_->alloc(bytes);
  return {data, bytes, std::shared_ptr<void>(data, [arena = arena_](void* block) {
            arena->free(static_cast<std::byte*>(block));
          })};
}

Message* Endpoint::draft(uint64_t group, uint64_t tag, int64_t bytes) {
  auto* message = new (arena_->alloc(sizeof(Message) + bytes)) Message;
  message->group = group;
  message->tag = tag;
  message->source = message->owner = rank_;
  message->bytes = bytes;
  message->payload = segment_->offset_of(message->own_payload());
  return message;
}

void Endpoint::post(int peer, Message* message) {
  if (!segment_->here(peer)) return wire_->send(peer, message);
  push(*segment_, segment_->rank(peer).inbox, segment_->offset_of(message));
  segment_->rank(peer).bell.ring();
}

Message* Endpoint::take(uint64_t group, int peer, uint64_t tag) {
  auto found = arrived_.find({group, peer, tag});
  if (found == arrived_.end()) return nullptr;
  Message* message = found->second.front();
  found->second.pop_front();
  if (found->second.empty()) arrived_.erase(found);
  return message;
}

void Endpoint::release(Message* message) {
  if (message->owner == rank_)
    arena_->free(reinterpret_cast<std::byte*>(message));
  else
    give_back(*segment_, message->owner, message);
}

Work Endpoint::send(const void* data, int64_t bytes, int peer, uint64_t tag, uint64_t group,
                    const std::string& name) {
  bool lend = bytes > kLend && segment_->here(peer) && segment_->reachable(data, bytes);
  Message* message = draft(group, tag, lend ? 0 : bytes);
  if (lend) {
    message->lent = true;
    message->bytes = bytes;
    message->payload = segment_->offset_of(data);
  } else if (bytes > 0) {
    std::memcpy(message->own_payload(), data, bytes);
  }
  if (!lend && !segment_->failed()) {
    post(peer, message);
    return {};
  }
  auto op = std::make_shared<Send>(shared_from_this(), message, peer, name);
  start([&] {
    post(peer, message);
    return op;
  });
  return Work(op);
}

Work Endpoint::receive(void* data, int64_t bytes, int peer, uint64_t tag, uint64_t group,
                       const std::string& name) {
  auto op = std::make_shared<Receive>(shared_from_this(), data, bytes, peer, name);
  start([&]() -> std::shared_ptr<Task> {
    Message* message = take(group, peer, tag);
    if (message == nullptr) {
      expected_[{group, peer, tag}].push_back(op);
      return nullptr;
    }
    op->match(message);
    return op;
  });
  return Work(op);
}

void Endpoint::start(const std::function<std::shared_ptr<Task>()>& enqueue) {
  Caller caller(*this);
  {
    std::lock_guard lock(mutex_);
    ++pending_;
    if (auto task = enqueue()) tasks_.push_back(std::move(task));
  }
  poll();
  if (pending_ > 0 && asleep_) nap_.ring();
}

bool Endpoint::take_messages() {
  auto& inbox = segment_->rank(rank_).inbox;
  if (inbox.load(std::memory_order_relaxed) == 0) return false;
  std::vector<Message*> messages;
  for (uint64_t at = inbox.exchange(0); at != 0; at = messages.back()->next)
    messages.push_back(segment_->at<Message>(at));
  for (auto it = messages.rbegin(); it != messages.rend(); ++it) {
    Key key{(*it)->group, (*it)->source, (*it)->tag};
    auto found = expected_.find(key);
    if (found == expected_.end()) {
      arrived_[key].push_back(*it);
      continue;
    }
    found->second.front()->match(*it);
    tasks_.push_back(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) expected_.erase(found);
  }
  return true;
}

bool Endpoint::poll() {
  std::lock_guard lock(mutex_);
  auto& busy = segment_->rank(rank_).busy;
  busy.store(1);  // before the look at failed(): see await_quiet_peers
  bool moved = false;
  if (segment_->failed() || closed_) {
    fail_all();
  } else {
    try {
      moved = take_messages();
      for (size_t i = 0; i < tasks_.size();) {
        Task::Step step = tasks_[i]->step();
        moved |= step != Task::Step::idle;
        if (step == Task::Step::finished)
          tasks_.erase(tasks_.begin() + static_cast<ptrdiff_t>(i));
        else
          ++i;
      }
    } catch (const base::CommError& error) {
      segment_->fail(rank_, fmt::format("failed: {}", error.what()));
      fail_all();
    }
  }
  busy.store(0);
  return moved;
}

void Endpoint::fail_all() {
  std::string why = fmt::format(
      ", on rank {}: {}", rank_,
      segment_->failed() ? segment_->failure() : "this rank has closed its connections");
  for (auto& task : tasks_) task->fail(why);
  for (auto& [_, receives] : expected_)
    for (auto& receive : receives) receive->fail(why);
  tasks_.clear();
  expected_.clear();
}

void Endpoint::wait(Op& op) {
  if (!op.finished()) {
    Caller caller(*this);
    Bell& bell = segment_->rank(rank_).bell;
    Clock::time_point since;
    for (int idle = 0; !op.finished(); ++idle) {
      if (poll()) {
        idle = -1;
      } else if (idle == 0) {
        since = Clock::now();
      } else if (idle > kSpins && idle <= kSpins + kYields) {
        std::this_thread::yield();
      } else if (idle > kSpins) {
        uint32_t seen = bell.arm();
        if (!poll() && !op.finished()) {
          check_peers(op, since);
          if (!segment_->failed())
            bell.sleep(seen, std::clamp<std::chrono::nanoseconds>(since + timeout_ - Clock::now(),
                                                                  1us, 1s));
        }
        bell.disarm();
      }
    }
  }
  if (op.error_.empty()) return;
  await_quiet_peers();
  // The operation that the job failed in is named once.
  const std::string failure = segment_->failed() ? segment_->failure() : "";
  const bool own = failure.find(op.describe()) != std::string::npos;
  throw base::CommError(own ? failure : op.error_);
}

void Endpoint::check_peers(Op& op, Clock::time_point since) {
  std::lock_guard lock(mutex_);
  if (op.finished() || segment_->failed()) return;
  std::vector<int> awaited = op.awaited();
  for (int r : awaited) {
    if (!has_left(r)) continue;
    // What it did before it left is visible now; it counts if it was enough.
    std::vector<int> still = op.awaited();
    bool arrived = segment_->rank(rank_).inbox.load() != 0 ||
                   std::find(still.begin(), still.end(), r) == still.end();
    if (!arrived)
      segment_->fail(r, fmt::format("ended before the operation was complete: {}, on rank {}",
                                    op.describe(), rank_));
    return;
  }
  auto waited = Clock::now() - since;
  if (waited < timeout_) return;
  segment_->fail(rank_, fmt::format("gave up: {} waited {:.2f} s for rank{} {} (timeout {:.2f} s)",
                                    op.describe(), seconds(waited), awaited.size() == 1 ? "" : "s",
                                    fmt::join(awaited, " "), seconds(timeout_)));
}

// A peer that was touching this rank's buffers when the job failed stops at the end of its step.
void Endpoint::await_quiet_peers() {
  auto limit = Clock::now() + 1s;
  for (int r = 0; r < segment_->ranks(); ++r) {
    const auto& peer = segment_->rank(r);
    while (r != rank_ && peer.busy.load() != 0 && peer.left.load() == 0 && Clock::now() < limit)
      std::this_thread::yield();
  }
}

void Endpoint::run_progress() {
  Bell& bell = segment_->rank(rank_).bell;
  auto last = Clock::now();
  while (!stop_) {
    if (pending_ > 0) last = Clock::now();
    if (pending_ == 0 && Clock::now() - last > kLinger) {
      asleep_ = true;
      uint32_t seen = nap_.arm();
      if (pending_ == 0 && !stop_) nap_.sleep(seen, 1h);
      nap_.disarm();
      asleep_ = false;
      last = Clock::now();
    } else if (pending_ == 0 || callers_ > 0) {
      uint32_t seen = nap_.arm();
      if (!stop_) nap_.sleep(seen, kNap);
      nap_.disarm();
    } else if (!poll()) {
      uint32_t seen = bell.arm();
      if (!poll() && pending_ > 0 && callers_ == 0 && !stop_) bell.sleep(seen, 50ms);
      bell.disarm();
    }
  }
}

}  // namespace trireme::comm
