// The generators against what their papers promise.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <random>

#include "trireme/base/error.h"
#include "trireme/schedule/generators.h"
#include "trireme/schedule/simulate.h"
#include "trireme/schedule/split_backward.h"

namespace trireme::schedule {
namespace {

using base::ConfigError;
using testing::HasSubstr;

double peak(const Simulation& simulation) {
  return std::ranges::max(simulation.peak_activations);
}

/// Where the request makes sense: the schedule, checked with and without transfers.
Schedule checked(std::string_view name, const Request& request) {
  Schedule schedule = generate(name, request);
  EXPECT_NO_THROW(check(schedule));
  EXPECT_NO_THROW(check(with_communication(schedule)));
  return schedule;
}

std::string refusal(std::string_view name, const Request& request) {
  try {
    generate(name, request);
  } catch (const ConfigError& e) {
    return e.what();
  }
  ADD_FAILURE() << name << " was not refused";
  return "";
}

/// The numbers of micro-batches that are told apart by some rule.
std::vector<int> micro_batches_of(int ranks) {
  return {1, 2, 3, ranks, ranks + 1, 2 * ranks - 1, 2 * ranks, 3 * ranks, 4 * ranks + 3};
}

TEST(Generators, Programs) {
  EXPECT_EQ(to_text(gpipe({2, 2})), "0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1\n");
  EXPECT_EQ(to_text(one_f_one_b({2, 3})), "0F0 0F1 0B0 0F2 0B1 0B2\n1F0 1B0 1F1 1B1 1F2 1B2\n");
  EXPECT_EQ(to_text(interleaved({2, 2, 2})),
            "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1\n1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1\n");
  EXPECT_EQ(to_text(generate("zb-h1", {2, 2})),
            "0F0 0F1 0I0 0W0 0I1 0W1\n1F0 1I0 1F1 1I1 1W0 1W1\n");
  EXPECT_EQ(to_text(forward_only({2, 1, 2})), "0F0 2F0\n1F0 3F0\n");
  EXPECT_EQ(to_text(with_communication(one_f_one_b({2, 1}))),
            "0F0 0SendF0 0RecvB0 0B0\n1RecvF0 1F0 1B0 1SendB0\n");
}

TEST(Generators, WarmUpOf1F1B) {
  for (int ranks : {1, 2, 3, 4, 8})
    for (int micro_batches : {1, 2, 3, 4, 5, 16}) {
      const Schedule schedule = one_f_one_b({ranks, micro_batches});
      for (int r = 0; r < ranks; ++r) {
        int warm_up = 0;
        while (schedule.program[r][warm_up].op == Op::F) ++warm_up;
        // The forward before the first backward opens the steady phase, where there is one.
        const int expected = std::min(ranks - 1 - r, micro_batches);
        EXPECT_EQ(warm_up, expected + (expected < micro_batches ? 1 : 0));
      }
    }
}

TEST(Generators, WarmUpAndChunksOfInterleaved) {
  for (int p : {1, 2, 3, 4, 8})
    for (int v : {2, 3, 4})
      for (int m : {p, 2 * p, 5 * p}) {
        const Schedule schedule = interleaved({p, m, v});
        for (int r = 0; r < p; ++r) {
          const std::vector<Action>& program = schedule.program[r];
          int warm_up = 0;
          while (program[warm_up].op == Op::F) ++warm_up;
          const int expected = std::min(2 * (p - 1 - r) + (v - 1) * p, m * v);
          EXPECT_EQ(warm_up, expected + (expected < m * v ? 1 : 0));
          int forward = 0, backward = 0;
          for (const Action& action : program) {
            int& i = action.op == Op::F ? forward : backward;
            const int local = i++ % (p * v) / p;
            EXPECT_EQ(action.chunk, (action.op == Op::F ? local : v - 1 - local) * p + r);
          }
        }
      }
}

TEST(Generators, Refusals) {
  EXPECT_THAT(refusal("zb-h3", {2, 2}),
              HasSubstr("no schedule 'zb-h3'; known: gpipe, 1f1b, interleaved, zb-h1, zb-2p, zb-v, "
                        "v-half, v-min, forward"));
  EXPECT_THAT(refusal("1f1b", {2, 2, 2}), HasSubstr("has 1 chunk a stage, but 2 were asked for"));
  EXPECT_THAT(refusal("zb-v", {2, 2, 1}), HasSubstr("has 2 chunks a stage, but 1 was asked for"));
  EXPECT_THAT(refusal("gpipe", {0, 2}), HasSubstr("each must be at least 1"));
  EXPECT_THAT(refusal("gpipe", {2, 0}), HasSubstr("each must be at least 1"));
  EXPECT_THAT(refusal("forward", {2, 2, 0}), HasSubstr("each must be at least 1"));
  EXPECT_THAT(refusal("gpipe", {.ranks = 2, .memory = {2}}), HasSubstr("takes no memory limit"));
  EXPECT_THAT(refusal("zb-v", {.ranks = 2, .memory = {0.5}}), HasSubstr("must be at least 1"));
  EXPECT_THAT(refusal("zb-h1", {.ranks = 3, .memory = {1, 2}}), HasSubstr("2 memory limits for 3"));
  EXPECT_THAT(refusal("1f1b", {.ranks = 1'000'000, .micro_batches = 100'000}),
              HasSubstr("3e+11 actions, more than can be planned"));
  Request request{.ranks = 2};
  request.costs.f = -1;
  EXPECT_THAT(refusal("zb-h1", request), HasSubstr("at least 0"));
  request.costs.f = NAN;
  EXPECT_THAT(refusal("zb-h1", request), HasSubstr("finite"));
  request.costs.f = 1;
  request.costs.chunks.resize(1);
  EXPECT_THAT(refusal("zb-h1", request),
              HasSubstr("costs of 1 chunks were given, but schedule zb-h1 has 2"));
}

TEST(Generators, BubblesAndPeaksOfFullBackwards) {
  for (int p : {1, 2, 3, 4, 8})
    for (int m : {1, 2, 3, 4, 5, 7, 8, 24}) {
      for (std::string_view name : {"gpipe", "1f1b"}) {
        const Schedule schedule = checked(name, {p, m});
        const Simulation plain = simulate(schedule, {}),
                         full = simulate(with_communication(schedule), {});
        EXPECT_NEAR(plain.bubble, (p - 1.0) / (m + p - 1), 1e-12) << name << p << m;
        EXPECT_EQ(plain.makespan, 3.0 * (m + p - 1));
        EXPECT_EQ(full.makespan, plain.makespan);
        EXPECT_EQ(full.peak_activations, plain.peak_activations);
        for (int r = 0; r < p; ++r)
          EXPECT_EQ(plain.peak_activations[r], name == "gpipe" ? m : std::min(p - r, m));
      }
      for (int v : {1, 2, 3, 4}) {
        const Simulation simulation = simulate(checked("interleaved", {p, m, v}), {});
        if (m % p == 0) {
          EXPECT_NEAR(simulation.bubble, (p - 1.0) / (v * m + p - 1), 1e-12);
        }
        EXPECT_LE(peak(simulation), m);
      }
    }
}

TEST(Generators, ZeroBubblesKeepTheirPromises) {
  int cells = 0;
  for (int p : {1, 2, 3, 4, 5, 6, 8, 12})
    for (int m : micro_batches_of(p)) {
      SCOPED_TRACE(fmt::format("{} ranks, {} micro-batches", p, m));
      const Simulation h1 = simulate(checked("zb-h1", {p, m}), {}),
                       twice = simulate(checked("zb-2p", {p, m}), {}),
                       v = simulate(checked("zb-v", {p, m}), {}),
                       half = simulate(checked("v-half", {p, m}), {}),
                       min = simulate(checked("v-min", {p, m}), {});
      EXPECT_LE(peak(h1), p);
      EXPECT_LE(peak(twice), 2 * p - 1);
      EXPECT_LE(peak(v), p);
      EXPECT_LE(peak(half), p / 2.0 + 1);
      EXPECT_LE(peak(min), (p + 4) / 3.0 + 1e-12);
      if (m >= p) {
        EXPECT_NEAR(h1.bubble, (p - 1.0) / (3 * m + p - 1), 1e-12);
      }
      if (m >= 2 * p - 1) {
        EXPECT_NEAR(twice.bubble_own, 0, 1e-12);
      }
      if (m >= 2 * p) {
        EXPECT_NEAR(v.bubble_own, 0, 1e-12);
      }
      // The papers' half and two thirds of 1F1B's bubble, in the time of whole stages.
      if (m >= p) {
        EXPECT_LE(half.makespan, 3 * m + 1.5 * (p - 1) + 0.5);
        EXPECT_LE(min.makespan, 3 * m + 2.2 * (p - 1) + 0.5);
      }
      ++cells;
    }
  EXPECT_EQ(cells, 8 * 9);
}

// The bubbles of a published ZB-V builder: F, I and W of 1000 (last but one column: 1000, 1200,
// 800) a chunk and messages of 1, 100, 1 and 1000, rounded as they were printed.
TEST(Generators, ZeroBubbleVIsNoWorseThanThePublishedTable) {
  struct Row {
    int ranks, micro_batches;
    std::array<double, 4> bubbles;
  };
  const bool full = std::getenv("TRIREME_FULL") != nullptr;
  constexpr Row kTable[] = {
      {2, 2, {.077, .091, .077, .200}},    {4, 4, {.111, .130, .111, .385}},
      {4, 8, {.0003, .028, .033, .262}},   {8, 8, {.128, .149, .128, .448}},
      {4, 16, {.00015, .014, .017, .150}}, {8, 32, {.0002, .020, .025, .176}}};
  constexpr std::array<Costs (*)(), 4> kCosts = {[] {
                                                   return Costs{2000, 2000, 2000, 1};
                                                 },
                                                 [] {
                                                   return Costs{2000, 2000, 2000, 100};
                                                 },
                                                 [] {
                                                   return Costs{2000, 2400, 1600, 1};
                                                 },
                                                 [] {
                                                   return Costs{2000, 2000, 2000, 1000};
                                                 }};
  for (const Row& row : kTable)
    for (size_t column = 0; column < 4; ++column) {
      if (!full && row.ranks * row.micro_batches > 32) continue;
      const Costs costs = kCosts[column]();
      const Simulation simulation = simulate(
          checked("zb-v", {.ranks = row.ranks, .micro_batches = row.micro_batches, .costs = costs}),
          costs);
      const double printed = row.bubbles[column];
      EXPECT_LE(simulation.bubble_own, printed + (printed < 0.001 ? 5e-5 : 5e-4))
          << row.ranks << " ranks, " << row.micro_batches << " micro-batches, column " << column;
      EXPECT_LE(peak(simulation), row.ranks);
    }
}

TEST(Generators, MemoryIsAParameter) {
  for (std::string_view name : {"zb-h1", "zb-v"})
    for (double memory : {1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 16.0, 100.0}) {
      const Request request{.ranks = 4, .micro_batches = 12, .memory = {memory}};
      const Simulation simulation = simulate(checked(name, request), {});
      EXPECT_LE(peak(simulation), memory) << name << " " << memory;
      // One activation lets one micro-batch pass at a time; with enough of them nothing waits.
      if (memory == 1) {
        EXPECT_EQ(simulation.makespan, name == "zb-h1" ? 108 : 74.5) << name;
      }
      if (memory >= 7) {
        EXPECT_NEAR(simulation.bubble_own, 0, 1e-12) << name;
      }
    }
}

TEST(Generators, RandomCostsNeverDeadlock) {
  std::mt19937 random(5);
  auto below = [&](int n) { return static_cast<int>(random() % n); };
  const std::vector<std::string_view> all = names();
  for (int draw = 0; draw < 2000; ++draw) {
    const std::string_view name = all[below(static_cast<int>(all.size()))];
    auto cost = [&] { return below(5) == 0 ? 0.0 : below(1000) / 100.0; };
    Request request{.ranks = 1 + below(8),
                    .micro_batches = 1 + below(20),
                    .costs = {cost(), cost(), cost(), cost()},
                    .search = below(32) == 0 ? 200'000 : 0};
    if (takes_memory(name) && below(2))
      for (int limits = below(2) ? 1 : request.ranks; limits > 0; --limits)
        request.memory.push_back(1 + below(40) / 4.0);
    if (below(4) == 0)
      for (int c = 0; c < generate(name, {request.ranks, 1}).chunks; ++c)
        request.costs.chunks.push_back({cost(), cost(), cost(), cost(), cost()});
    const Schedule schedule = checked(name, request);
    const Simulation simulation = simulate(schedule, request.costs);
    for (int r = 0; r < schedule.ranks && !request.memory.empty(); ++r) {
      const double allowed = request.memory[request.memory.size() == 1 ? 0 : r];
      ASSERT_LE(memory_of(schedule)[r] * schedule.ranks, allowed * schedule.chunks);
    }
    if (!request.costs.chunks.empty()) continue;
    const Costs& c = request.costs;
    const double work = request.micro_batches * (c.f + (name == "forward" ? 0 : c.i + c.w));
    ASSERT_GE(simulation.makespan, work * (1 - 1e-12));
  }
}

TEST(Generators, LargePipelinesAreQuick) {
  for (std::string_view name : names()) {
    const std::clock_t begin = std::clock();  // of this process: others may be at work
    const Schedule schedule = generate(
        name,
        {.ranks = 64, .micro_batches = 512, .costs = {.f = 1, .i = 1.2, .w = 0.8, .comm = 0.1}});
    const double took = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
#if defined(NDEBUG) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
    EXPECT_LT(took, 1) << name;
#else
    EXPECT_LT(took, 20) << name;
#endif
    EXPECT_LT(simulate(schedule, {}).bubble, 0.4) << name;
  }
}

TEST(ForwardOnly, RunsOnAnySchedulesModel) {
  for (int p : {1, 2, 3, 4})
    for (int m : {1, 2, 5, 8})
      for (std::string_view name : names()) {
        const Schedule training = generate(name, {p, 2});
        const Schedule forward = forward_only(training, m);
        check(with_communication(forward));
        EXPECT_EQ(forward.rank_of_chunk, training.rank_of_chunk);
        EXPECT_EQ(forward.chunks, training.chunks);
        EXPECT_TRUE(forward.forward_only());
        const Simulation simulation = simulate(forward, {});
        EXPECT_LE(simulation.makespan, m + 2 * (p - 1)) << name << p << m;
      }
  const Simulation simulation = simulate(forward_only({4, 9}), {});
  EXPECT_EQ(simulation.makespan, 12);
  EXPECT_THAT(simulation.peak_activations, testing::Each(1));
}

TEST(SplitBackward, KeepsTheOrderOfForwardsAndInputGradients) {
  const Schedule order = one_f_one_b({3, 7});
  const Schedule split = split_backward(order, {}, {.memory = {3, 2, 1}});
  for (int r = 0; r < 3; ++r) {
    std::vector<Action> kept;
    for (Action action : split.program[r]) {
      if (action.op == Op::W) continue;
      if (action.op == Op::I) action.op = Op::B;
      kept.push_back(action);
    }
    EXPECT_EQ(kept, order.program[r]);
  }
  EXPECT_THROW(split_backward(order, {}, {.memory = {2, 2, 2}}), ConfigError);
  EXPECT_EQ(memory_of(order), (std::vector<int>{3, 2, 1}));
}

TEST(Refine, IsNoWorseAndTheSameEachTime) {
  const Costs costs{.f = 1, .i = 1.3, .w = 0.7, .comm = 0.2};
  const Schedule before =
      generate("v-half", {.ranks = 4, .micro_batches = 6, .costs = costs, .search = 0});
  const std::vector<int> memory(4, 6);
  for (Goal goal : {Goal::makespan, Goal::own_bubble}) {
    const Schedule after = refine(before, costs, goal, memory, 2'000'000);
    check(after);
    EXPECT_LE(badness(after, costs, goal), badness(before, costs, goal));
    EXPECT_TRUE(fits(after, memory));
    EXPECT_EQ(refine(before, costs, goal, memory, 2'000'000).program, after.program);
  }
  EXPECT_LT(simulate(refine(before, costs, Goal::makespan, memory, 2'000'000), costs).makespan,
            simulate(before, costs).makespan);
}

}  // namespace
}  // namespace trireme::schedule
