#include "trireme/schedule/refine.h"

#include <algorithm>
#include <array>
#include <limits>
#include <random>

namespace trireme::schedule {

namespace {

/// A rank and a position in its program.
using Place = std::pair<size_t, size_t>;

/// Simulates programs of F, I and W again and again: flat tables, no allocation.
class Clock {
 public:
  Clock(const Schedule& schedule, const Costs& costs, Goal goal)
      : rank_of_(schedule.rank_of_chunk),
        micro_batches_(schedule.micro_batches),
        message_(costs.comm),
        goal_(goal),
        next_(schedule.ranks),
        clock_(schedule.ranks),
        busy_(schedule.ranks, 0) {
    for (const auto& row : schedule.program) spans_.emplace_back(row.size());
    for (int c = 0; c < schedule.chunks; ++c) {
      const ChunkCosts of = costs_of(costs, schedule, c);
      time_.push_back({of.f, of.i, of.w});
      busy_[rank_of_[c]] += (of.f + of.i + of.w) * micro_batches_;
    }
    const size_t cells = static_cast<size_t>(schedule.chunks) * micro_batches_;
    forward_.resize(cells), gradient_.resize(cells);
  }

  double badness(const std::vector<std::vector<Action>>& program) {
    std::ranges::fill(forward_, kNotYet);
    std::ranges::fill(gradient_, kNotYet);
    std::ranges::fill(next_, 0);
    std::ranges::fill(clock_, 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = 0; r < program.size(); ++r)
        while (next_[r] < program[r].size() && step(static_cast<int>(r), program[r][next_[r]]))
          ++next_[r], moved = true;
    }
    double makespan = 0, most = 0, sum = 0, work = 0;
    for (size_t r = 0; r < program.size(); ++r) {
      if (next_[r] < program[r].size()) return std::numeric_limits<double>::infinity();
      makespan = std::max(makespan, clock_[r]);
      work = std::max(work, busy_[r]);
      const double idle = idle_share(r);
      most = std::max(most, idle);
      sum += idle;
    }
    const double stretch = work > 0 ? makespan / work : 0;
    // The lesser goals break ties and lead the search over level ground.
    return goal_ == Goal::makespan ? stretch + 1e-3 * (most + sum) : most + 1e-3 * (stretch + sum);
  }

  /// What holds the rank with the largest idle share up, in the program simulated last: for each of
  /// its gaps the chain of actions that led to the late one.
  std::vector<Place> causes(const std::vector<std::vector<Action>>& program) const {
    constexpr size_t kChain = 64;
    size_t worst = 0;
    for (size_t r = 1; r < program.size(); ++r)
      if (idle_share(r) > idle_share(worst)) worst = r;
    std::vector<Place> causes;
    for (size_t gap = 1; gap < program[worst].size(); ++gap) {
      if (!late(worst, gap)) continue;
      Place at{worst, gap};
      for (size_t length = 0; length < kChain; ++length) {
        causes.push_back(at);
        auto& [rank, i] = at;
        if (late(rank, i))
          at = source(program[rank][i], program, rank_of_);
        else if (i == 0)
          break;
        else
          --i;
      }
    }
    return causes;
  }

 private:
  static constexpr double kNotYet = -1;

  /// Did this action come later than its rank was free?
  bool late(size_t rank, size_t i) const {
    return spans_[rank][i].first > (i == 0 ? 0 : spans_[rank][i - 1].second);
  }

  /// Runs an action; false where what it needs has not run.
  bool step(int rank, const Action& action) {
    const auto [op, chunk, micro_batch] = action;
    const size_t cell = static_cast<size_t>(chunk) * micro_batches_ + micro_batch;
    double begin = clock_[rank];
    auto need = [&](const std::vector<double>& ended, size_t at, int by) {
      if (ended[at] < 0) return false;
      begin = std::max(begin, ended[at] + (by == rank ? 0 : message_));
      return true;
    };
    const bool last = chunk + 1 == std::ssize(rank_of_);
    if (op == Op::F && chunk > 0 && !need(forward_, cell - micro_batches_, rank_of_[chunk - 1]))
      return false;
    if (op == Op::I && (!need(forward_, cell, rank) ||
                        (!last && !need(gradient_, cell + micro_batches_, rank_of_[chunk + 1]))))
      return false;
    if (op == Op::W && !need(gradient_, cell, rank)) return false;
    const double end = begin + time_[chunk][static_cast<size_t>(op == Op::F   ? 0
                                                                : op == Op::I ? 1
                                                                              : 2)];
    if (op == Op::F) forward_[cell] = end;
    if (op == Op::I) gradient_[cell] = end;
    clock_[rank] = end;
    spans_[rank][next_[rank]] = {begin, end};
    return true;
  }

  /// Idle share of the time between a rank's first and last action.
  double idle_share(size_t rank) const {
    const double own = clock_[rank] - spans_[rank].front().first;
    return own > 0 ? (own - busy_[rank]) / own : 0;
  }

  /// Where the action stands that `action` waited for on another rank.
  static Place source(const Action& action, const std::vector<std::vector<Action>>& program,
                      const std::vector<int>& rank_of) {
    const Action made{action.op, action.op == Op::F ? action.chunk - 1 : action.chunk + 1,
                      action.micro_batch};
    const std::vector<Action>& row = program[rank_of[made.chunk]];
    return {static_cast<size_t>(rank_of[made.chunk]),
            static_cast<size_t>(std::ranges::find(row, made) - row.begin())};
  }

  const std::vector<int>& rank_of_;
  int micro_batches_;
  double message_;
  Goal goal_;
  std::vector<std::array<double, 3>> time_;  // of F, I, W by chunk
  std::vector<double> forward_, gradient_;   // when they ended, by chunk and micro-batch
  std::vector<size_t> next_;                 // by rank
  std::vector<double> clock_, busy_;         // by rank
  std::vector<std::vector<std::pair<double, double>>>
      spans_;  // begin and end, by rank and position
};

/// Does the order of these two actions of one rank matter to the schedule itself?
bool tied(const Action& a, const Action& b) {
  return a.chunk == b.chunk && (a.op == b.op || a.micro_batch == b.micro_batch);
}

/// Moves the action at `from` to `to`; those between close up.
void move(std::vector<Action>& row, size_t from, size_t to) {
  const auto at = row.begin();
  if (from < to)
    std::rotate(at + from, at + from + 1, at + to + 1);
  else
    std::rotate(at + to, at + from, at + from + 1);
}

bool may_move(const std::vector<Action>& row, size_t from, size_t to) {
  for (size_t i = std::min(from, to); i <= std::max(from, to); ++i)
    if (i != from && tied(row[i], row[from])) return false;
  return true;
}

bool fits(const std::vector<Action>& row, int memory) {
  int held = 0;
  for (const Action& action : row) {
    if (action.op == Op::F && ++held > memory) return false;
    if (action.op == Op::W) --held;
  }
  return true;
}

}  // namespace

double badness(const Schedule& schedule, const Costs& costs, Goal goal) {
  return Clock(schedule, costs, goal).badness(schedule.program);
}

Schedule refine(const Schedule& schedule, const Costs& costs, Goal goal,
                const std::vector<int>& memory, int64_t actions) {
  constexpr double kThreshold = 1e-4;  // how much worse a step of the search may be at its start
  constexpr int64_t kUseful = 2000;    // rounds below which it would find little
  constexpr int64_t kMost = 200'000;   // rounds beyond which a short schedule gains nothing
  constexpr int64_t kLook = 64;  // rounds from one look at the causes of idle time to the next
  int64_t length = 0;
  for (const auto& row : schedule.program) length += std::ssize(row);
  const int64_t rounds = std::min(actions / std::max<int64_t>(length, 1), kMost);
  if (rounds < kUseful) return schedule;

  Clock clock(schedule, costs, goal);
  Schedule best = schedule;
  auto current = schedule.program;
  double now = clock.badness(current), least = now;
  std::vector<Place> causes;
  std::mt19937 random(1);  // its numbers are fixed by the standard; distributions are not
  // Threshold accepting (Dueck and Scheuer, 1990): small steps back are taken, ever smaller ones.
  for (int64_t round = 0; round < rounds; ++round) {
    if (round % kLook == 0) {
      clock.badness(current);
      causes = clock.causes(current);
    }
    Place at;
    if (!causes.empty() && random() % 2 > 0) {
      at = causes[random() % causes.size()];
    } else {
      at.first = random() % current.size();
      at.second = random() % current[at.first].size();
    }
    std::vector<Action>& row = current[at.first];
    const size_t from = at.second;
    const size_t far = random() % 3 > 0 ? 1 : 1 + random() % 8;
    const bool later = random() % 2 > 0;
    if (later ? from + far >= row.size() : from < far) continue;
    const size_t to = later ? from + far : from - far;
    if (!may_move(row, from, to)) continue;
    move(row, from, to);
    if (!fits(row, memory[at.first])) {
      move(row, to, from);
      continue;
    }
    const double then = clock.badness(current);
    const double threshold = kThreshold * static_cast<double>(rounds - round) / rounds;
    if (then - now < threshold) {
      now = then;
      if (now < least) least = now, best.program = current;
    } else {
      move(row, to, from);
    }
  }
  return best;
}

}  // namespace trireme::schedule
