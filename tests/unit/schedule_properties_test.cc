// check against an executor of its own: what is accepted runs, what cannot run is refused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "trireme/base/error.h"
#include "trireme/schedule/generators.h"
#include "trireme/schedule/simulate.h"

namespace trireme::schedule {
namespace {

using base::ConfigError;
using testing::HasSubstr;

class Random {
 public:
  explicit Random(uint32_t seed) : random_(seed) {}
  int below(size_t n) { return static_cast<int>(random_() % n); }
  template <class T>
  T& pick(std::vector<T>& from) {
    return from[below(from.size())];
  }

 private:
  std::mt19937 random_;
};

/// What the actions of a rank have made and received; sends go into the other rank's mail.
class Machine {
 public:
  explicit Machine(const Schedule& schedule)
      : schedule_(schedule), communicates_(schedule.communicates()) {}

  bool can_run(const Action& a) const {
    const Op op = a.op;
    const int c = a.chunk, m = a.micro_batch;
    const bool first = c == 0, last = c + 1 == schedule_.chunks;
    auto made = [&](std::initializer_list<Op> ops, int chunk) {
      return std::ranges::any_of(ops, [&](Op o) { return has({o, chunk, m}); });
    };
    switch (op) {
      case Op::F:
        return first || (travels(c, c - 1) ? has({Op::RecvF, c, m}) : has({Op::F, c - 1, m}));
      case Op::B:
      case Op::I:
        return has({Op::F, c, m}) &&
               (last || (travels(c, c + 1) ? has({Op::RecvB, c, m}) : made({Op::B, Op::I}, c + 1)));
      case Op::W:
        return has({Op::I, c, m});
      case Op::SendF:
        return has({Op::F, c, m});
      case Op::SendB:
        return made({Op::B, Op::I}, c);
      case Op::RecvF:
        return has({Op::SendF, c - 1, m});
      case Op::RecvB:
        return has({Op::SendB, c + 1, m});
    }
    return false;
  }
  void run(const Action& a) { done_.insert({a.op, a.chunk, a.micro_batch}); }
  bool has(const Action& a) const { return done_.contains({a.op, a.chunk, a.micro_batch}); }

 private:
  bool travels(int chunk, int other) const {
    return communicates_ && schedule_.crosses(chunk, other);
  }
  const Schedule& schedule_;
  bool communicates_;
  std::set<std::tuple<Op, int, int>> done_;
};

/// Ranks go on in a random order until none can. True when all came to their end.
bool comes_to_its_end(const Schedule& schedule, Random& random) {
  Machine machine(schedule);
  std::vector<size_t> next(schedule.ranks, 0);
  while (true) {
    std::vector<int> able;
    for (int r = 0; r < schedule.ranks; ++r)
      if (next[r] < schedule.program[r].size() && machine.can_run(schedule.program[r][next[r]]))
        able.push_back(r);
    if (able.empty()) break;
    const int r = random.pick(able);
    machine.run(schedule.program[r][next[r]++]);
  }
  for (int r = 0; r < schedule.ranks; ++r)
    if (next[r] < schedule.program[r].size()) return false;
  return true;
}

/// A program that some run of the machine wrote down: any placement, any order, B or I and W at
/// will.
Schedule random_program(Random& random) {
  Schedule schedule{.name = "random",
                    .ranks = 1 + random.below(4),
                    .chunks = 1 + random.below(6),
                    .micro_batches = 1 + random.below(5)};
  for (int c = 0; c < schedule.chunks; ++c)
    schedule.rank_of_chunk.push_back(random.below(schedule.ranks));
  schedule.program.resize(schedule.ranks);
  std::vector<Action> left;
  for (int c = 0; c < schedule.chunks; ++c)
    for (int m = 0; m < schedule.micro_batches; ++m) {
      left.push_back({Op::F, c, m});
      if (random.below(2)) {
        left.push_back({Op::B, c, m});
      } else {
        left.push_back({Op::I, c, m});
        left.push_back({Op::W, c, m});
      }
    }
  Machine machine(schedule);
  while (!left.empty()) {
    const int i = random.below(left.size());
    const Action action = left[i];
    if (!machine.can_run(action)) continue;
    machine.run(action);
    schedule.program[schedule.rank_of_chunk[action.chunk]].push_back(action);
    left.erase(left.begin() + i);
  }
  return random.below(2) ? with_communication(schedule) : schedule;
}

std::string refusal(const Schedule& schedule) {
  try {
    check(schedule);
  } catch (const ConfigError& e) {
    return e.what();
  }
  ADD_FAILURE() << "accepted:\n" << to_text(schedule);
  return "";
}

std::vector<Action>& some_row(Schedule& schedule, Random& random) {
  while (true)
    if (auto& row = random.pick(schedule.program); !row.empty()) return row;
}

TEST(CheckProperties, RandomValidProgramsAreAcceptedAndRun) {
  Random random(3);
  for (int round = 0; round < 1000; ++round) {
    const Schedule schedule = random_program(random);
    ASSERT_NO_THROW(check(schedule)) << to_text(schedule);
    ASSERT_TRUE(comes_to_its_end(schedule, random)) << to_text(schedule);
    const Costs costs{1.0 * random.below(9), 1.0 * random.below(9), 1.0 * random.below(9),
                      1.0 * random.below(3)};
    const Simulation simulation = simulate(schedule, costs);
    size_t ran = 0;
    for (const auto& row : simulation.timeline) ran += row.size();
    size_t compute = 0;
    for (const auto& row : schedule.program)
      compute += std::ranges::count_if(row, [](const Action& a) { return is_compute(a.op); });
    ASSERT_EQ(ran, compute);
  }
}

TEST(CheckProperties, AMissingActionIsNamed) {
  Random random(4);
  for (int round = 0; round < 500; ++round) {
    Schedule schedule = random_program(random);
    auto& row = some_row(schedule, random);
    const int i = random.below(row.size());
    const Action gone = row[i];
    const bool trained = !schedule.forward_only();
    row.erase(row.begin() + i);
    if (trained && schedule.forward_only()) continue;  // its only backward fell out
    const bool communicated = !is_compute(gone.op) && !schedule.communicates();
    if (communicated) continue;  // its only transfer fell out
    EXPECT_THAT(refusal(schedule), HasSubstr(to_string(gone))) << to_text(schedule);
  }
}

TEST(CheckProperties, ADoubleActionIsNamedWithItsSecondCell) {
  Random random(5);
  for (int round = 0; round < 500; ++round) {
    Schedule schedule = random_program(random);
    auto& row = some_row(schedule, random);
    const int i = random.below(row.size());
    const int at = random.below(row.size() + 1);
    const Action twice = row[i];
    row.insert(row.begin() + at, twice);
    const int second = at <= i ? i + 2 : at + 1;
    EXPECT_THAT(refusal(schedule),
                HasSubstr(fmt::format("cell {}: {} is done twice", second, to_string(twice))))
        << to_text(schedule);
  }
}

TEST(CheckProperties, AnotherActionInItsPlaceIsRefused) {
  Random random(6);
  for (int round = 0; round < 500; ++round) {
    Schedule schedule = random_program(random);
    auto& row = some_row(schedule, random);
    Action& action = random.pick(row);
    const Action before = action;
    const bool trained = !schedule.forward_only();
    while (action == before)
      action = {static_cast<Op>(random.below(8)), random.below(schedule.chunks + 1),
                random.below(schedule.micro_batches + 1)};
    if (trained != !schedule.forward_only()) continue;
    refusal(schedule);
  }
}

TEST(CheckProperties, AnotherOrderIsRefusedWhereItCannotRun) {
  Random random(7);
  int accepted = 0, refused = 0;
  for (int round = 0; round < 3000; ++round) {
    Schedule schedule = random_program(random);
    for (int swaps = 1 + random.below(3); swaps > 0; --swaps) {
      auto& row = some_row(schedule, random);
      std::swap(random.pick(row), random.pick(row));
    }
    if (comes_to_its_end(schedule, random)) {
      ++accepted;
      ASSERT_NO_THROW(check(schedule)) << to_text(schedule);
    } else {
      ++refused;
      EXPECT_THAT(refusal(schedule), testing::ContainsRegex("comes before|deadlock"));
    }
  }
  EXPECT_GT(accepted, 300);
  EXPECT_GT(refused, 300);
}

TEST(CheckProperties, WBeforeIAndLonelyTransfersAreNamed) {
  Random random(8);
  int early = 0, lonely = 0;
  for (int round = 0; round < 500; ++round) {
    Schedule schedule = random_program(random);
    const Schedule intact = schedule;
    auto& row = some_row(schedule, random);
    const auto w = std::ranges::find(row, Op::W, &Action::op);
    if (w != row.end()) {
      const auto i = std::ranges::find(row, Action{Op::I, w->chunk, w->micro_batch});
      std::iter_swap(w, i);
      EXPECT_THAT(refusal(schedule), HasSubstr(fmt::format("{} comes before", to_string(*i))));
      ++early;
    }
    if (!intact.communicates()) continue;
    schedule = intact;
    Action sent;
    for (auto& some : schedule.program) {
      const auto send = std::ranges::find(some, Op::SendF, &Action::op);
      if (send != some.end()) sent = *send;
    }
    for (auto& some : schedule.program)
      std::erase(some, Action{Op::RecvF, sent.chunk + 1, sent.micro_batch});
    EXPECT_THAT(refusal(schedule),
                HasSubstr(fmt::format("{} has no matching receive", to_string(sent))));
    ++lonely;
  }
  EXPECT_GT(early, 100);
  EXPECT_GT(lonely, 100);
}

}  // namespace
}  // namespace trireme::schedule
