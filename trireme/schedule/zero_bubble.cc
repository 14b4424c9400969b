#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/schedule/frame.h"
#include "trireme/schedule/split_backward.h"

namespace trireme::schedule {

namespace {

/// Actions that the plays of one request may run: what keeps the longest pipelines under a second.
constexpr int64_t kPlayed = 600'000;

/// The building blocks' own costs: nothing is left to search for.
bool plain(const Costs& costs) {
  return costs.chunks.empty() && costs.f == costs.i && costs.i == costs.w && costs.comm == 0;
}

/// The best of the schedules that splitting the orders gives, then searched on.
Schedule best_split(const std::vector<Schedule>& orders, const Request& request, Goal goal,
                    const std::vector<int>& memory) {
  Schedule best;
  double least = std::numeric_limits<double>::infinity();
  int64_t played = 0;
  for (double patience : {0.5, 0.0, 1.0, 0.25, 0.75})
    for (bool early : {true, false})
      for (const Schedule& order : orders) {
        if (played > kPlayed) break;
        Schedule split =
            split_backward(order, request.costs,
                           {.memory = memory, .patience = patience, .early_forwards = early});
        const double bad = badness(split, request.costs, goal);
        if (bad < least) least = bad, best = std::move(split);
        played += int64_t{3} * order.chunks * order.micro_batches;
      }
  if (plain(request.costs)) return best;
  return refine(best, request.costs, goal, memory, request.search);
}

/// A building block: when one micro-batch visits the ranks, in ticks; the next one follows a period
/// later. The way goes down the ranks and up, forward, then down and up again, backward; `hop`
/// ticks from rank to rank on the way down and on the way up, and `turn` extra ticks at the three
/// turns.
struct Block {
  int down, up;
  int period = 6;  // F, I, W of two chunks
  std::array<int, 3> turn = {};

  /// Ticks of F of the first chunk, F, B of the second, B of the first on a rank.
  std::array<int, 4> ticks(int ranks, int rank) const {
    const int bottom = down * (ranks - 1), top = up * (ranks - 1);
    const int up_forward = bottom + 1 + turn[0];
    const int down_backward = up_forward + top + 1 + turn[1];
    const int up_backward = down_backward + bottom + 1 + turn[2];
    const int from_top = down * rank, from_bottom = up * (ranks - 1 - rank);
    return {from_top, up_forward + from_bottom, down_backward + from_top,
            up_backward + from_bottom};
  }

  /// Do the four actions of a rank fall on ticks of their own, period after period?
  bool fits(int ranks) const {
    for (int rank = 0; rank < ranks; ++rank) {
      std::array<int, 4> at = ticks(ranks, rank);
      for (int& tick : at) tick %= period;
      std::ranges::sort(at);
      if (std::ranges::adjacent_find(at) != at.end()) return false;
    }
    return true;
  }
};

/// The block with the fewest extra ticks whose actions do not collide; as it is where none is free
/// of collisions.
Block without_collisions(Block block, int ranks) {
  int least = std::numeric_limits<int>::max();
  Block best = block;
  for (int turns = 0; turns < 216; ++turns) {
    block.turn = {turns / 36, turns / 6 % 6, turns % 6};
    const int extra = std::reduce(block.turn.begin(), block.turn.end());
    if (extra < least && block.fits(ranks)) least = extra, best = block;
  }
  return best;
}

/// Each rank's actions in the order of their ticks.
Schedule repeat(Schedule schedule, const Block& block) {
  for (int r = 0; r < schedule.ranks; ++r) {
    const int first = r, second = schedule.chunks - 1 - r;
    const std::array<int, 4> at = block.ticks(schedule.ranks, r);
    std::vector<std::pair<int, Action>> timed;
    for (int m = 0; m < schedule.micro_batches; ++m) {
      const int begin = m * block.period;
      timed.push_back({begin + at[0], {Op::F, first, m}});
      timed.push_back({begin + at[1], {Op::F, second, m}});
      timed.push_back({begin + at[2], {Op::B, second, m}});
      timed.push_back({begin + at[3], {Op::B, first, m}});
    }
    std::ranges::stable_sort(timed, {}, &std::pair<int, Action>::first);
    for (const auto& [tick, action] : timed) schedule.program[r].push_back(action);
  }
  return schedule;
}

/// Orders within the memory, the roomiest first. A roomier block leaves more time between a rank's
/// action and the one that waits for it on another.
std::vector<Schedule> blocks_within(const Schedule& empty, const std::vector<int>& memory) {
  constexpr size_t kEnough = 3;
  // Down and up add up to a number that shares a divisor with the period, so that the two ways meet
  // on free ticks.
  constexpr Block kBlocks[] = {{8, 4}, {6, 3}, {5, 3}, {4, 2}, {3, 3},
                               {3, 1}, {2, 2}, {2, 1}, {1, 2}, {1, 1}};
  std::vector<Schedule> orders;
  for (const Block& block : kBlocks) {
    if (orders.size() == kEnough) break;
    Schedule order = repeat(empty, without_collisions(block, empty.ranks));
    if (fits(order, memory)) orders.push_back(std::move(order));
  }
  if (!orders.empty()) return orders;
  // Too tight for any: micro-batches follow one another at a distance, at most one after another.
  auto apart = [&](int period) { return repeat(empty, {1, 1, period}); };
  int tight = 6, loose = 4 * empty.ranks + 1;
  while (loose - tight > 1) {
    const int middle = std::midpoint(tight, loose);
    (fits(apart(middle), memory) ? loose : tight) = middle;
  }
  return {apart(loose)};
}

}  // namespace

Schedule zero_bubble(std::string_view name, const Request& request) {
  const Schedule empty = frame(name, request);
  const int ranks = request.ranks;
  const std::vector<int> memory = chunk_memory(empty, request);
  const Goal goal = name == "zb-2p" ? Goal::own_bubble : Goal::makespan;
  // More in flight than there is time to hide only delays the first backward.
  std::vector<Schedule> orders = {one_f_one_b_within(empty, memory)};
  for (int fewer : {2 * ranks - 1, ranks}) {
    std::vector<int> capped = memory;
    for (int& most : capped) most = std::min(most, fewer);
    if (capped != memory) orders.push_back(one_f_one_b_within(empty, capped));
  }
  return best_split(orders, request, request.goal.value_or(goal), memory);
}

Schedule v_shape(std::string_view name, const Request& request) {
  const Schedule empty = frame(name, request);
  const std::vector<int> memory = chunk_memory(empty, request);
  return best_split(blocks_within(empty, memory), request, request.goal.value_or(Goal::own_bubble),
                    memory);
}

}  // namespace trireme::schedule
