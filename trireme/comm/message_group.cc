#include "trireme/comm/message_group.h"

#include <algorithm>
#include <coroutine>
#include <cstring>
#include <exception>
#include <numeric>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/comm/reduction.h"

namespace trireme::comm {
namespace {
constexpr int64_t kPiece = 256 << 10;
constexpr int64_t kExchange = 64 << 10;  // all-reduces with no more input in total, and no more
constexpr int kExchangeMembers = 16;     // members, send everything to everybody
constexpr int64_t kWindow = 8;           // pieces of a gather that a receiver has not yet taken
constexpr int64_t kChain = 64 << 10;     // larger broadcasts go from run to run

int64_t pieces_of(int64_t bytes) {
  return (bytes + kPiece - 1) / kPiece;
}
}  // namespace

/// A coroutine that has not begun.
class MessageGroup::Steps {
 public:
  struct promise_type {
    std::exception_ptr error;
    Steps get_return_object() { return Steps(Handle::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { error = std::current_exception(); }
  };
  using Handle = std::coroutine_handle<promise_type>;

  Steps() = default;
  explicit Steps(Handle handle) : handle_(handle) {}
  Steps(Steps&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Steps& operator=(Steps&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Steps() {
    if (handle_) handle_.destroy();
  }
  explicit operator bool() const { return static_cast<bool>(handle_); }
  /// Goes on to the next pause; true: at the end.
  bool resume() {
    handle_.resume();
    if (handle_.promise().error) std::rethrow_exception(handle_.promise().error);
    return handle_.done();
  }

 private:
  Handle handle_ = nullptr;
};

/// A message that has arrived, given back at the end of its scope.
class MessageGroup::Held {
 public:
  Held(Endpoint& endpoint, Message* message) : endpoint_(&endpoint), message_(message) {}
  Held(Held&& other) noexcept
      : endpoint_(other.endpoint_), message_(std::exchange(other.message_, nullptr)) {}
  Held& operator=(Held&&) = delete;
  ~Held() {
    if (message_ != nullptr) endpoint_->release(message_);
  }
  const std::byte* data() const { return endpoint_->segment().at(message_->payload); }

 private:
  Endpoint* endpoint_;
  Message* message_;
};

class MessageGroup::Collective : public Op {
 public:
  Collective(std::shared_ptr<Endpoint> endpoint, std::shared_ptr<MessageGroup> group, Kind kind,
             const void* in, void* out, int64_t count, DType dtype)
      : Op(std::move(endpoint)),
        kind(kind),
        dtype(dtype),
        in(static_cast<const std::byte*>(in)),
        out(static_cast<std::byte*>(out)),
        count(count),
        size(base::size_of(dtype)),
        group_(std::move(group)) {}
  std::string describe() const override {
    return fmt::format("{} in group '{}' (ranks {})", name(call(), count), group_->name_,
                       fmt::join(group_->ranks_, " "));
  }
  std::vector<int> awaited() const override {
    const auto& queue = group_->queue_;
    if (queue.empty() || !queue.front()->waits) return {};
    return {group_->ranks_[queue.front()->member]};
  }

  uint64_t call() const {
    return static_cast<uint64_t>(kind) | static_cast<uint64_t>(dtype) << 8 |
           static_cast<uint64_t>(reduce) << 16 | static_cast<uint64_t>(root) << 32;
  }
  static std::string name(uint64_t call, int64_t count) {
    return comm::describe(static_cast<Kind>(call & 7), count, static_cast<DType>(call >> 8 & 255));
  }
  /// Where the members' parts lie in a buffer packed by `parts`.
  std::vector<Slice> slices(std::span<const int64_t> parts) const {
    std::vector<Slice> slices;
    int64_t begin = 0;
    for (int64_t part : parts) {
      slices.push_back({begin, part * size});
      begin += part * size;
    }
    return slices;
  }

  Kind kind;
  DType dtype;
  Reduce reduce = Reduce::sum;
  int root = 0;
  const std::byte* in;
  std::byte* out;
  int64_t count, size;
  std::vector<int64_t> counts, receives;  // receives: of all_to_all

  Steps steps;
  bool waits = false;  // for the message below; else it only paused
  int member = 0;
  uint64_t tag = 0;
  int64_t bytes = 0;
  Message* arrived = nullptr;

 private:
  std::shared_ptr<MessageGroup> group_;
};

/// Pauses until a member's next message on a channel is there; a member below zero: pauses once.
struct MessageGroup::Next {
  const MessageGroup& group;
  Collective& op;
  int member;
  uint64_t tag;
  int64_t bytes;
  bool await_ready() const { return false; }
  void await_suspend(std::coroutine_handle<>) const {
    op.waits = member >= 0;
    op.member = member;
    op.tag = tag;
    op.bytes = bytes;
  }
  Held await_resume() const { return {*group.endpoint_, std::exchange(op.arrived, nullptr)}; }
};

MessageGroup::MessageGroup(std::shared_ptr<Endpoint> endpoint, std::vector<int> ranks,
                           const std::vector<int>& hosts, std::string name, uint64_t id)
    : endpoint_(std::move(endpoint)),
      ranks_(std::move(ranks)),
      members_(static_cast<int>(ranks_.size())),
      name_(std::move(name)),
      id_(id) {
  for (int m = 0; m < members_; ++m) {
    if (ranks_[m] == endpoint_->rank()) me_ = m;
    if (m == 0 || hosts[m] != hosts[m - 1]) runs_.push_back({m, 0});
    widest_ = std::max(widest_, ++runs_.back().size);
    run_of_.push_back(static_cast<int>(runs_.size()) - 1);
  }
}

MessageGroup::~MessageGroup() = default;

// ---- calls ----

Work MessageGroup::all_reduce(void* data, int64_t count, DType dtype, Reduce reduce) {
  auto op = std::make_shared<Collective>(endpoint_, shared_from_this(), Kind::all_reduce, data,
                                         data, count, dtype);
  op->reduce = reduce;
  return enqueue(std::move(op));
}

Work MessageGroup::reduce_scatter(const void* in, void* out, std::span<const int64_t> counts,
                                  DType dtype, Reduce reduce) {
  int64_t count = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  auto op = std::make_shared<Collective>(endpoint_, shared_from_this(), Kind::reduce_scatter, in,
                                         out, count, dtype);
  op->reduce = reduce;
  op->counts.assign(counts.begin(), counts.end());
  return enqueue(std::move(op));
}

Work MessageGroup::all_gather(const void* in, void* out, std::span<const int64_t> counts,
                              DType dtype) {
  int64_t count = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  auto op = std::make_shared<Collective>(endpoint_, shared_from_this(), Kind::all_gather, in, out,
                                         count, dtype);
  op->counts.assign(counts.begin(), counts.end());
  return enqueue(std::move(op));
}

Work MessageGroup::broadcast(void* data, int64_t count, DType dtype, int root) {
  auto op = std::make_shared<Collective>(endpoint_, shared_from_this(), Kind::broadcast, data, data,
                                         count, dtype);
  op->root = root;
  return enqueue(std::move(op));
}

Work MessageGroup::all_to_all(const void* in, std::span<const int64_t> send_counts, void* out,
                              std::span<const int64_t> recv_counts, DType dtype) {
  int64_t count = std::accumulate(send_counts.begin(), send_counts.end(), int64_t{0});
  auto op = std::make_shared<Collective>(endpoint_, shared_from_this(), Kind::all_to_all, in, out,
                                         count, dtype);
  op->counts.assign(send_counts.begin(), send_counts.end());
  op->receives.assign(recv_counts.begin(), recv_counts.end());
  return enqueue(std::move(op));
}

Work MessageGroup::isend(const void* data, int64_t bytes, int peer, uint64_t tag) {
  return endpoint_->send(data, bytes, ranks_[peer], tag, id_, name_);
}

Work MessageGroup::irecv(void* data, int64_t bytes, int peer, uint64_t tag) {
  return endpoint_->receive(data, bytes, ranks_[peer], tag, id_, name_);
}

SharedBuffer MessageGroup::alloc(size_t bytes) {
  return endpoint_->alloc(bytes);
}

Work MessageGroup::enqueue(std::shared_ptr<Collective> op) {
  endpoint_->start([&]() -> std::shared_ptr<Task> {
    queue_.push_back(op);
    return queue_.size() == 1 ? shared_from_this() : nullptr;
  });
  return Work(std::move(op));
}

// ---- progress ----

Task::Step MessageGroup::step() {
  Collective& op = *queue_.front();
  if (!op.steps) {
    bool small = op.count * op.size * members_ <= kExchange && members_ <= kExchangeMembers;
    switch (op.kind) {
      case Kind::all_reduce:
        op.steps = small ? exchange(op) : reduce(op);
        break;
      case Kind::reduce_scatter:
        op.steps = reduce(op);
        break;
      case Kind::all_gather:
      case Kind::broadcast:
        op.steps = spread(op);
        break;
      case Kind::all_to_all:
        op.steps = all_to_all(op);
        break;
    }
  }
  if (op.waits) {
    op.arrived = endpoint_->take(~id_, ranks_[op.member], op.tag);
    if (op.arrived == nullptr) return Step::idle;
    compare(op, *op.arrived);
    op.waits = false;
  }
  if (!op.steps.resume()) return Step::moved;
  ++sequence_;
  auto finished = std::move(queue_.front());
  queue_.pop_front();
  finished->steps = {};
  finished->finish();
  return queue_.empty() ? Step::finished : Step::moved;
}

void MessageGroup::fail(const std::string& why) {
  for (auto& op : queue_) {
    op->steps = {};
    op->finish(op->describe() + why);
  }
  queue_.clear();
}

// All members must have called the same; what differs is named.
void MessageGroup::compare(const Collective& op, const Message& message) const {
  int sender = message.source;
  bool uneven = op.kind == Kind::all_to_all;  // counts differ between ranks by design
  if (message.call != op.call() || (!uneven && message.count != op.count))
    throw base::CommError(fmt::format(
        "{}: rank {} calls {}{}; all ranks must make the same calls with the same counts in the "
        "same order",
        op.describe(), sender, Collective::name(message.call, message.count),
        (message.call & 7) == static_cast<uint64_t>(Kind::broadcast)
            ? fmt::format(" from rank {}", ranks_[(message.call >> 32) % ranks_.size()])
            : ""));
  if (uneven && message.count != op.receives[op.member])
    throw base::CommError(fmt::format("{}: rank {} sends {} elements, rank {} expects {}",
                                      op.describe(), sender, message.count, ranks_[me_],
                                      op.receives[op.member]));
  if (message.bytes != op.bytes)
    throw base::CommError(
        fmt::format("{}: rank {} sends {} bytes where {} belong; the counts of the ranks differ",
                    op.describe(), sender, message.bytes, op.bytes));
}

Message* MessageGroup::draft(const Collective& op, Channel channel, int lane, int64_t bytes) const {
  uint64_t tag =
      sequence_ << 24 | static_cast<uint64_t>(channel) << 20 | static_cast<uint64_t>(lane);
  Message* message = endpoint_->draft(~id_, tag, bytes);
  message->call = op.call();
  message->count = op.count;
  return message;
}

void MessageGroup::post(int member, Message* message) const {
  endpoint_->post(ranks_[member], message);
}

void MessageGroup::post(const Collective& op, int member, Channel channel, int lane,
                        const std::byte* data, int64_t bytes) const {
  Message* message = draft(op, channel, lane, bytes);
  if (op.kind == Kind::all_to_all) message->count = op.counts[member];
  if (bytes > 0) std::memcpy(message->own_payload(), data, bytes);
  post(member, message);
}

MessageGroup::Next MessageGroup::next(Collective& op, int member, Channel channel, int lane,
                                      int64_t bytes) const {
  uint64_t tag =
      sequence_ << 24 | static_cast<uint64_t>(channel) << 20 | static_cast<uint64_t>(lane);
  return {*this, op, member, tag, bytes};
}

/// From whom this rank has what the tree spreads.
int MessageGroup::parent(const Tree& tree) const {
  int run = run_of(me_), root_run = run_of(tree.root), runs = static_cast<int>(runs_.size());
  if (run == root_run) return tree.root;
  int first = worker(run, tree.lane);
  if (me_ != first) return first;
  int before = (run + runs - 1) % runs;
  return !tree.chain || before == root_run ? tree.root : worker(before, tree.lane);
}

/// To whom it passes that on: to the other runs first.
std::vector<int> MessageGroup::children(const Tree& tree) const {
  int run = run_of(me_), root_run = run_of(tree.root), runs = static_cast<int>(runs_.size());
  if (me_ != (run == root_run ? tree.root : worker(run, tree.lane))) return {};
  std::vector<int> children;
  for (int i = 1; i < runs; ++i) {
    int other = (run + i) % runs;
    if (other == root_run || (tree.chain ? i > 1 : run != root_run)) break;
    children.push_back(worker(other, tree.lane));
  }
  for (int m = runs_[run].begin; m < runs_[run].begin + runs_[run].size; ++m)
    if (m != me_) children.push_back(m);
  return children;
}

// ---- algorithms ----

/// A small all-reduce: every member has all contributions.
MessageGroup::Steps MessageGroup::exchange(Collective& op) {
  int64_t bytes = op.count * op.size;
  for (int m = 0; m < members_; ++m)
    if (m != me_) post(op, m, Channel::contribution, 0, op.in, bytes);
  std::vector<Held> held;
  std::vector<const std::byte*> sources;
  held.reserve(members_);
  for (int m = 0; m < members_; ++m) {
    if (m == me_) {
      sources.push_back(op.in);
      continue;
    }
    held.push_back(co_await next(op, m, Channel::contribution, 0, bytes));
    sources.push_back(held.back().data());
  }
  comm::reduce(sources, {&op.out, 1}, op.count, op.dtype, op.reduce);
}

/// All-reduce and reduce-scatter: a lane for each part, worked for by one member of each run.
MessageGroup::Steps MessageGroup::reduce(Collective& op) {
  const bool to_all = op.kind == Kind::all_reduce;
  const int run = run_of(me_), last_run = static_cast<int>(runs_.size()) - 1;
  const int64_t wide = base::size_of(accumulation_type(op.dtype));
  std::vector<Slice> slices;  // of the input, a lane each
  if (to_all) {
    int64_t begin = 0, each = (op.count + widest_ - 1) / widest_;
    for (int lane = 0; lane < widest_; ++lane) {
      int64_t n = std::min(each, op.count - begin);
      slices.push_back({begin * op.size, n * op.size});
      begin += n;
    }
  } else {
    slices = op.slices(op.counts);
  }
  const int lanes = static_cast<int>(slices.size());
  // The lane of a member's part is worked for by that member in its own run.
  auto lane_worker = [&](int in_run, int lane) {
    return worker(in_run, to_all ? lane : lane - runs_[run_of(lane)].begin);
  };
  auto pieces = [&](int lane) {
    // An empty operation still waits for all: a barrier is one.
    return std::max<int64_t>(pieces_of(slices[lane].bytes), to_all && lane == 0 ? 1 : 0);
  };
  auto piece_bytes = [&](int lane, int64_t piece) {
    return std::min(kPiece, slices[lane].bytes - piece * kPiece);
  };
  int64_t most = 0;
  for (int lane = 0; lane < lanes; ++lane) most = std::max(most, pieces(lane));
  const int64_t window = 2 * static_cast<int64_t>(runs_.size()) + 2;

  for (int64_t turn = 0; turn < most + window; ++turn) {
    for (int lane = 0; lane < lanes; ++lane)
      if (turn < pieces(lane) && lane_worker(run, lane) != me_)
        post(op, lane_worker(run, lane), Channel::contribution, lane,
             op.in + slices[lane].begin + turn * kPiece, piece_bytes(lane, turn));
    for (int lane = 0; lane < lanes; ++lane) {
      if (turn >= pieces(lane) || lane_worker(run, lane) != me_) continue;
      const int64_t at = slices[lane].begin + turn * kPiece, bytes = piece_bytes(lane, turn);
      const int64_t count = bytes / op.size;
      std::vector<Held> held;
      std::vector<const std::byte*> sources;
      held.reserve(runs_[run].size + 1);
      const std::byte* before = nullptr;
      if (run > 0) {
        held.push_back(
            co_await next(op, lane_worker(run - 1, lane), Channel::partial, lane, count * wide));
        before = held.back().data();
      }
      for (int m = runs_[run].begin; m < runs_[run].begin + runs_[run].size; ++m) {
        if (m != me_) {
          held.push_back(co_await next(op, m, Channel::contribution, lane, bytes));
          sources.push_back(held.back().data());
        } else {
          sources.push_back(op.in + at);
        }
      }
      Message* onwards = nullptr;  // to the next run, or to the member whose part it is
      std::byte* out = op.out + (to_all ? at : turn * kPiece);
      if (run < last_run)
        onwards = draft(op, Channel::partial, lane, count * wide);
      else if (!to_all && lane != me_)
        onwards = draft(op, Channel::result, lane, bytes);
      if (onwards != nullptr) out = onwards->own_payload();
      reduce_onwards(before, sources, out, run == last_run, count, op.dtype, op.reduce);
      if (onwards != nullptr) {
        post(run < last_run ? lane_worker(run + 1, lane) : lane, onwards);
      } else if (to_all) {
        for (int child : children({me_, lane, true}))
          post(op, child, Channel::result, lane, out, bytes);
      }
    }
    const int64_t piece = turn - window;  // its results are due
    for (int lane = 0; lane < lanes && piece >= 0; ++lane) {
      int root = lane_worker(last_run, lane);
      if (piece >= pieces(lane) || root == me_ || (!to_all && lane != me_)) continue;
      const int64_t bytes = piece_bytes(lane, piece);
      std::byte* out = op.out + (to_all ? slices[lane].begin : 0) + piece * kPiece;
      Tree tree{root, lane, true};
      Held held = co_await next(op, to_all ? parent(tree) : root, Channel::result, lane, bytes);
      if (bytes > 0) std::memcpy(out, held.data(), bytes);
      if (!to_all) continue;
      for (int child : children(tree)) post(op, child, Channel::result, lane, out, bytes);
    }
    co_await Next{*this, op, -1, 0, 0};
  }
}

/// All-gather and broadcast: the parts of some members spread to all.
MessageGroup::Steps MessageGroup::spread(Collective& op) {
  std::vector<Slice> parts(members_, {0, 0});
  const bool gather = op.kind == Kind::all_gather;
  if (gather)
    parts = op.slices(op.counts);
  else
    parts[op.root] = {0, op.count * op.size};
  const bool chain = !gather && parts[op.root].bytes > kChain;
  std::vector<Tree> trees;
  std::vector<std::vector<int>> to;
  int64_t most = 0;
  for (int source = 0; source < members_; ++source) {
    trees.push_back({source, source - runs_[run_of(source)].begin, chain});
    to.push_back(children(trees.back()));
    most = std::max(most, pieces_of(parts[source].bytes));
  }
  for (int64_t piece = 0; piece < most; ++piece) {
    for (int i = -1; i < members_; ++i) {
      if (i == me_) continue;
      const int source = i < 0 ? me_ : i;  // the own part first; then all in one order on all
      const int64_t at = piece * kPiece, bytes = std::min(kPiece, parts[source].bytes - at);
      if (bytes <= 0) continue;
      std::byte* out = op.out + parts[source].begin + at;
      std::vector<Held> held;
      const std::byte* data = op.in + at;
      if (source != me_) {
        held.push_back(co_await next(op, parent(trees[source]), Channel::result, source, bytes));
        data = held.back().data();
      }
      if (data != out) std::memcpy(out, data, bytes);
      for (int child : to[source]) {
        if (piece >= kWindow) co_await next(op, child, Channel::receipt, source, 0);
        post(op, child, Channel::result, source, out, bytes);
      }
      if (source != me_ && piece + kWindow < pieces_of(parts[source].bytes))
        post(op, parent(trees[source]), Channel::receipt, source, nullptr, 0);
    }
    co_await Next{*this, op, -1, 0, 0};
  }
}

MessageGroup::Steps MessageGroup::all_to_all(Collective& op) {
  const std::vector<Slice> out = op.slices(op.counts), in = op.slices(op.receives);
  // An empty part is a message too, in which the counts are compared.
  auto pieces = [](const Slice& slice) { return std::max<int64_t>(1, pieces_of(slice.bytes)); };
  int64_t most = 0;
  for (int m = 0; m < members_; ++m) most = std::max({most, pieces(out[m]), pieces(in[m])});
  if (in[me_].bytes > 0) std::memcpy(op.out + in[me_].begin, op.in + out[me_].begin, in[me_].bytes);
  for (int64_t piece = 0; piece < most; ++piece) {
    const int64_t at = piece * kPiece;
    for (int i = 1; i < members_; ++i) {
      const int m = (me_ + i) % members_;
      if (piece >= pieces(out[m])) continue;
      if (piece >= kWindow) co_await next(op, m, Channel::receipt, 0, 0);
      post(op, m, Channel::contribution, 0, op.in + out[m].begin + at,
           std::min(kPiece, out[m].bytes - at));
    }
    for (int i = 1; i < members_; ++i) {
      const int m = (me_ + members_ - i) % members_;
      if (piece >= pieces(in[m])) continue;
      const int64_t bytes = std::min(kPiece, in[m].bytes - at);
      Held held = co_await next(op, m, Channel::contribution, 0, bytes);
      if (bytes > 0) std::memcpy(op.out + in[m].begin + at, held.data(), bytes);
      if (piece + kWindow < pieces(in[m])) post(op, m, Channel::receipt, 0, nullptr, 0);
    }
    co_await Next{*this, op, -1, 0, 0};
  }
}

}  // namespace trireme::comm
