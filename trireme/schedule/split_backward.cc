#include "trireme/schedule/split_backward.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <queue>

#include "trireme/base/error.h"

namespace trireme::schedule {

namespace {

constexpr double kUnknown = std::numeric_limits<double>::infinity();

/// Plays an order of F and B on a clock and notes what each rank does when.
class Player {
 public:
  Player(const Schedule& order, const Costs& costs, const SplitOptions& options)
      : order_(order), options_(options), message_(costs.comm), ranks_(order.ranks) {
    for (int c = 0; c < order.chunks; ++c) costs_.push_back(costs_of(costs, order, c));
    const size_t cells = static_cast<size_t>(order.chunks) * order.micro_batches;
    input_.assign(cells, kUnknown);
    gradient_.assign(cells, kUnknown);
    std::fill_n(input_.begin(), order.micro_batches, 0.0);  // chunk 0's come from the loader
    for (int r = 0; r < order.ranks; ++r) {
      Rank& rank = ranks_[r];
      rank.done.assign(order.program[r].size(), false);
      for (const Action& action : order.program[r])
        rank.first_chunk = std::min(rank.first_chunk, action.chunk);
    }
  }

  Schedule play() {
    for (int r = 0; r < order_.ranks; ++r) wake(0, r);
    while (!wakes_.empty()) {
      const auto [now, r] = wakes_.top();
      wakes_.pop();
      if (now >= ranks_[r].free) decide(now, r);
    }
    Schedule split = order_;
    for (int r = 0; r < order_.ranks; ++r) split.program[r] = std::move(ranks_[r].played);
    return split;
  }

 private:
  struct Rank {
    double free = 0;
    size_t next = 0;         // in the order
    std::vector<bool> done;  // by position in the order
    size_t early = 0;        // no forward before this position can come early
    int first_chunk = std::numeric_limits<int>::max();
    int live = 0;                // chunk activations
    std::deque<Action> waiting;  // W, oldest first
    std::vector<Action> played;
  };

  size_t cell(const Action& a) const {
    return static_cast<size_t>(a.chunk) * order_.micro_batches + a.micro_batch;
  }
  double ready(const Action& a) const { return (a.op == Op::F ? input_ : gradient_)[cell(a)]; }
  void wake(double when, int rank) { wakes_.push({when, rank}); }

  /// What the rank does now: the next of its order, else an early forward, else a W, else nothing.
  void decide(double now, int r) {
    Rank& rank = ranks_[r];
    const std::vector<Action>& order = order_.program[r];
    while (rank.next < order.size() && rank.done[rank.next]) ++rank.next;
    double arrival = kUnknown;
    bool full = false;
    if (rank.next < order.size()) {
      const Action& action = order[rank.next];
      full = action.op == Op::F && rank.live == options_.memory[r];
      if (!full) {
        arrival = ready(action);
        if (arrival <= now) return start(now, r, rank.next);
      }
    }
    auto fits = [&](double time) { return arrival - now >= time * options_.patience; };
    if (options_.early_forwards && !full && fits(costs_[rank.first_chunk].f))
      if (const size_t early = early_forward(r, now); early < order.size())
        return start(now, r, early);
    if (!rank.waiting.empty()) {
      const Action w = rank.waiting.front();
      if (full || fits(costs_[w.chunk].w)) {
        rank.waiting.pop_front();
        --rank.live;
        return run(now, r, w, costs_[w.chunk].w);
      }
    }
    if (arrival < kUnknown) wake(arrival, r);
  }

  /// Position of a forward that may come early: of the rank's first chunk, its input there, and
  /// memory enough for all that the order has before it.
  size_t early_forward(int r, double now) {
    Rank& rank = ranks_[r];
    const std::vector<Action>& order = order_.program[r];
    const int memory = options_.memory[r];
    size_t& at = rank.early;
    at = std::max(at, rank.next);
    while (at < order.size() &&
           (rank.done[at] || order[at].op != Op::F || order[at].chunk != rank.first_chunk))
      ++at;
    if (at == order.size() || rank.live == memory || ready(order[at]) > now) return order.size();
    int held = rank.live - static_cast<int>(rank.waiting.size()) + 1;
    for (size_t i = rank.next; i < at; ++i) {
      if (rank.done[i]) continue;
      held += order[i].op == Op::F ? 1 : -1;
      if (held > memory) return order.size();
    }
    return at;
  }

  void start(double now, int r, size_t position) {
    Rank& rank = ranks_[r];
    Action action = order_.program[r][position];
    rank.done[position] = true;
    if (action.op == Op::F) {
      ++rank.live;
      run(now, r, action, costs_[action.chunk].f);
      if (action.chunk + 1 < order_.chunks)
        arrive(input_, {Op::F, action.chunk + 1, action.micro_batch}, r);
      else
        gradient_[cell(action)] = rank.free;
    } else {
      action.op = Op::I;
      rank.waiting.push_back({Op::W, action.chunk, action.micro_batch});
      run(now, r, action, costs_[action.chunk].i);
      if (action.chunk > 0) arrive(gradient_, {Op::I, action.chunk - 1, action.micro_batch}, r);
    }
  }

  void run(double now, int r, const Action& action, double time) {
    ranks_[r].played.push_back(action);
    ranks_[r].free = now + time;
    wake(now + time, r);
  }

  /// What rank `from` has just made reaches the rank of `action`, which takes it.
  void arrive(std::vector<double>& table, const Action& action, int from) {
    const int to = order_.rank_of_chunk[action.chunk];
    const double when = ranks_[from].free + (to == from ? 0 : message_);
    table[cell(action)] = when;
    if (to != from) wake(when, to);
  }

  const Schedule& order_;
  const SplitOptions& options_;
  double message_;
  std::vector<ChunkCosts> costs_;
  std::vector<double> input_, gradient_;  // when they arrive, by chunk and micro-batch
  std::vector<Rank> ranks_;
  using Wake = std::pair<double, int>;
  std::priority_queue<Wake, std::vector<Wake>, std::greater<>> wakes_;
};

}  // namespace

std::vector<int> memory_of(const Schedule& order) {
  std::vector<int> needed;
  for (const auto& row : order.program) {
    int held = 0, most = 0;
    for (const Action& action : row) {
      if (action.op == Op::F) most = std::max(most, ++held);
      if (action.op == Op::B || action.op == Op::W) --held;
    }
    needed.push_back(most);
  }
  return needed;
}

bool fits(const Schedule& order, const std::vector<int>& memory) {
  return std::ranges::equal(memory_of(order), memory, std::less_equal<>());
}

Schedule split_backward(const Schedule& order, const Costs& costs, const SplitOptions& options) {
  if (!fits(order, options.memory))
    throw base::ConfigError(fmt::format(
        "schedule {}: its order needs memory for [{}] chunk activations on the ranks, "
        "but [{}] are allowed; allow more",
        order.name, fmt::join(memory_of(order), ", "), fmt::join(options.memory, ", ")));
  return Player(order, costs, options).play();
}

}  // namespace trireme::schedule
