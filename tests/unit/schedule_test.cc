#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "trireme/base/error.h"
#include "trireme/schedule/draw.h"
#include "trireme/schedule/generators.h"
#include "trireme/schedule/simulate.h"

namespace trireme::schedule {
namespace {

using base::ConfigError;
using base::FormatError;
using testing::ElementsAre;
using testing::HasSubstr;

/// The message of the error that `body` throws.
template <class Error, class Body>
std::string message_of(Body body) {
  try {
    body();
  } catch (const Error& e) {
    return e.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

std::string refusal(const std::string& text) {
  return message_of<ConfigError>([&] { check(parse(text, "mine")); });
}

TEST(Schedule, TextThereAndBack) {
  for (std::string_view name : names()) {
    const Schedule made = generate(name, {3, 4, 1});
    for (const Schedule& schedule : {made, with_communication(made)}) {
      const Schedule read = parse("# a comment\n\n" + to_text(schedule) + " \n", "text");
      EXPECT_EQ(read.program, schedule.program);
      EXPECT_EQ(read.rank_of_chunk, schedule.rank_of_chunk);
      EXPECT_EQ(read.chunks, 3);
      EXPECT_EQ(read.micro_batches, 4);
    }
  }
}

TEST(Schedule, ParseNamesRowAndCell) {
  auto error = [](const std::string& text) {
    return message_of<FormatError>([&] { parse(text, "my.txt"); });
  };
  EXPECT_THAT(error("0F0 0B0\n1F0 1X0"), HasSubstr("my.txt: row 2 (rank 1), cell 2: '1X0'"));
  for (const char* cell : {"F0", "0F", "0F-1", "-1F0", "0F0x", "0f0", "0F99999999999", "0Send0"})
    EXPECT_THAT(error(cell), HasSubstr("is no action")) << cell;
  EXPECT_THAT(error("0F0\n0B0"), HasSubstr("a chunk lies on one rank"));
  EXPECT_THAT(error("0F0\n2F0"), HasSubstr("chunk 1 has no action"));
  EXPECT_THAT(error(" \n# nothing\n"), HasSubstr("holds no action"));
}

TEST(Generators, Programs) {
  EXPECT_EQ(to_text(gpipe({2, 2, 1})), "0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1\n");
  EXPECT_EQ(to_text(one_f_one_b({2, 3, 1})), "0F0 0F1 0B0 0F2 0B1 0B2\n1F0 1B0 1F1 1B1 1F2 1B2\n");
  EXPECT_EQ(to_text(forward_only({2, 1, 2})), "0F0 2F0\n1F0 3F0\n");
  EXPECT_EQ(to_text(with_communication(one_f_one_b({2, 1, 1}))),
            "0F0 0SendF0 0RecvB0 0B0\n1RecvF0 1F0 1B0 1SendB0\n");
}

TEST(Generators, WarmUpOf1F1B) {
  for (int ranks : {1, 2, 3, 4, 8})
    for (int micro_batches : {1, 2, 3, 4, 5, 16}) {
      const Schedule schedule = one_f_one_b({ranks, micro_batches, 1});
      for (int r = 0; r < ranks; ++r) {
        int warm_up = 0;
        while (schedule.program[r][warm_up].op == Op::F) ++warm_up;
        // The forward before the first backward opens the steady phase, where there is one.
        const int expected = std::min(ranks - 1 - r, micro_batches);
        EXPECT_EQ(warm_up, expected + (expected < micro_batches ? 1 : 0));
      }
    }
}

TEST(Generators, Refusals) {
  EXPECT_THAT(message_of<ConfigError>([] {
                generate("zb-h1", {2, 2, 1});
              }),
              HasSubstr("no schedule 'zb-h1'; known: gpipe, 1f1b, forward"));
  EXPECT_THROW(generate("1f1b", {2, 2, 2}), ConfigError);
  EXPECT_THROW(generate("gpipe", {0, 2, 1}), ConfigError);
  EXPECT_THROW(generate("gpipe", {2, 0, 1}), ConfigError);
  EXPECT_THROW(generate("forward", {2, 2, 0}), ConfigError);
}

TEST(Simulate, BubblesAndPeaks) {
  for (int p : {1, 2, 3, 4, 8})
    for (int m : {1, 2, 3, 4, 5, 7, 8, 24}) {
      for (std::string_view name : {"gpipe", "1f1b"}) {
        const Schedule schedule = generate(name, {p, m, 1});
        check(schedule);
        check(with_communication(schedule));
        const Simulation plain = simulate(schedule, {}),
                         full = simulate(with_communication(schedule), {});
        EXPECT_NEAR(plain.bubble, (p - 1.0) / (m + p - 1), 1e-12) << name << p << m;
        EXPECT_EQ(plain.makespan, 3.0 * (m + p - 1));
        EXPECT_EQ(full.makespan, plain.makespan);
        EXPECT_EQ(full.peak_activations, plain.peak_activations);
        for (int r = 0; r < p; ++r)
          EXPECT_EQ(plain.peak_activations[r], name == "gpipe" ? m : std::min(p - r, m));
      }
      const Simulation forward = simulate(forward_only({p, m, 1}), {});
      EXPECT_EQ(forward.makespan, m + p - 1);
      EXPECT_THAT(forward.peak_activations, testing::Each(1));
    }
}

TEST(Simulate, MessagesTakeTime) {
  const Schedule schedule = gpipe({3, 1, 1});
  const Costs costs{.f = 1, .i = 1, .w = 1, .comm = 0.5};
  EXPECT_EQ(simulate(schedule, costs).makespan, 3 * 3 + 4 * 0.5);
  EXPECT_EQ(simulate(with_communication(schedule), costs).makespan, 3 * 3 + 4 * 0.5);
}

TEST(Simulate, ActivationsLiveUntilW) {
  EXPECT_THAT(simulate(parse("0F0 0I0 0F1 0I1 0W0 0W1", "w"), {}).peak_activations, ElementsAre(2));
  EXPECT_THAT(simulate(parse("0F0 0B0 0F1 0B1", "b"), {}).peak_activations, ElementsAre(1));
  EXPECT_THAT(simulate(gpipe({2, 3, 2}), {}).peak_activations, ElementsAre(3, 3));
}

TEST(Simulate, OwnBubbleLooksBetweenARanksFirstAndLastAction) {
  const Simulation s = simulate(gpipe({2, 1, 1}), {});
  EXPECT_NEAR(s.bubble, 0.5, 1e-12);
  EXPECT_NEAR(s.bubble_own, 0.5, 1e-12);  // rank 0 waits 3 of 6; rank 1 never
  EXPECT_NEAR(simulate(forward_only({2, 3, 1}), {}).bubble_own, 0, 1e-12);
}

TEST(Check, NamesRankCellAndReason) {
  EXPECT_THAT(refusal("0F0 0B0 0F1"), HasSubstr("rank 0 lacks 0B1"));
  EXPECT_THAT(refusal("0F0 0I0"), HasSubstr("rank 0 lacks 0W0"));
  EXPECT_THAT(refusal("0F0 0W0"), HasSubstr("rank 0 lacks 0I0"));
  EXPECT_THAT(refusal("0B0"), HasSubstr("rank 0 lacks 0F0"));
  EXPECT_THAT(refusal("0F0 0F0 0B0"), HasSubstr("rank 0, cell 2: 0F0 is done twice: cell 1"));
  EXPECT_THAT(refusal("0F0 0B0 0W0"), HasSubstr("cell 3: 0W0 is done twice: cell 2 holds 0B0"));
  EXPECT_THAT(refusal("0F0 0I0 0B0 0W0"), HasSubstr("cell 3: 0B0 is done twice: cell 2 holds 0I0"));
  EXPECT_THAT(refusal("0F0 0W0 0I0"),
              HasSubstr("rank 0, cell 2: 0W0 comes before 0I0 (cell 3), which it needs"));
  EXPECT_THAT(refusal("0B0 0F0"), HasSubstr("cell 1: 0B0 comes before 0F0"));
}

TEST(Check, NamesTheCircleOfADeadlock) {
  // Rank 0 wants micro-batch 0 back before it sends 1; rank 1 wants 1 first.
  EXPECT_THAT(
      refusal("0F0 0B0 0F1 0B1\n1F1 1F0 1B0 1B1"),
      HasSubstr("deadlock; rank 0, cell 2: 0B0 waits for 1I0 (rank 1, cell 3); rank 1, cell "
                "1: 1F1 waits for 0F1 (rank 0, cell 3)"));
}

TEST(Check, Transfers) {
  EXPECT_THAT(refusal("0F0 0SendF0 0RecvB0 0B0\n1F0 1B0 1SendB0"),
              HasSubstr("rank 0, cell 2: 0SendF0 has no matching receive 1RecvF0 on rank 1"));
  EXPECT_THAT(refusal("0F0 0SendF0 0RecvB0 0B0\n1RecvF0 1F0 1B0"),
              HasSubstr("rank 0, cell 3: 0RecvB0 has no matching send 1SendB0 on rank 1"));
  EXPECT_THAT(refusal("0F0 0SendF0 0B0\n1RecvF0 1F0 1B0"), HasSubstr("lacks 1SendB0 (a transfer)"));
  EXPECT_THAT(refusal("0F0 0SendF0 0B0"), HasSubstr("0SendF0 has no other end"));
  EXPECT_THAT(refusal("0F0 0SendF0 0RecvB0 0B0\n1F0 1RecvF0 1B0 1SendB0"),
              HasSubstr("rank 1, cell 1: 1F0 comes before 1RecvF0"));
}

TEST(Check, Frames) {
  Schedule schedule = gpipe({2, 2, 1});
  schedule.rank_of_chunk[1] = 2;
  EXPECT_THROW(check(schedule), ConfigError);
  schedule.rank_of_chunk[1] = 0;
  EXPECT_THAT(message_of<ConfigError>([&] { check(schedule); }), HasSubstr("belongs to rank 0"));
  schedule = gpipe({2, 2, 1});
  schedule.program.pop_back();
  EXPECT_THROW(check(schedule), ConfigError);
  schedule = gpipe({2, 2, 1});
  schedule.program[1][0].micro_batch = 2;
  EXPECT_THAT(message_of<ConfigError>([&] { check(schedule); }), HasSubstr("outside of [0, 2)"));
}

/// Backwards apart into I and W with each W at a random later place: valid by construction.
Schedule random_split(const Schedule& schedule, std::mt19937& random) {
  Schedule split = schedule;
  for (auto& row : split.program) {
    std::vector<Action> out, waiting;
    for (Action action : row) {
      if (action.op == Op::B) {
        waiting.push_back({Op::W, action.chunk, action.micro_batch});
        action.op = Op::I;
      }
      out.push_back(action);
      while (!waiting.empty() && random() % 2) {
        out.push_back(waiting.back());
        waiting.pop_back();
      }
    }
    out.insert(out.end(), waiting.begin(), waiting.end());
    row = std::move(out);
  }
  return split;
}

TEST(Check, DamagedProgramsAreRefusedAndAcceptedOnesRun) {
  std::mt19937 random(11);
  auto below = [&](size_t n) { return random() % n; };
  int accepted = 0;
  for (int round = 0; round < 2000; ++round) {
    const std::string_view name = names()[below(names().size())];
    const int chunks = takes_chunks(name) ? 1 + static_cast<int>(below(2)) : 1;
    Schedule schedule =
        generate(name, {1 + static_cast<int>(below(4)), 1 + static_cast<int>(below(6)), chunks});
    if (below(2)) schedule = random_split(schedule, random);
    if (below(2)) schedule = with_communication(schedule);
    ASSERT_NO_THROW(check(schedule));

    auto& row = schedule.program[below(schedule.ranks)];
    const size_t i = below(row.size());
    const Action before = row[i];
    const bool forward = schedule.forward_only();
    switch (below(4)) {
      case 0:  // missing
        row.erase(row.begin() + i);
        break;
      case 1:  // double
        row.insert(row.begin() + below(row.size() + 1), row[i]);
        break;
      case 2:  // another action in its place
        while (row[i] == before)
          row[i] = {static_cast<Op>(below(8)), static_cast<int>(below(schedule.chunks + 1)),
                    static_cast<int>(below(schedule.micro_batches + 1))};
        break;
      default: {  // another order: may be valid
        std::swap(row[i], row[below(row.size())]);
        try {
          check(schedule);
        } catch (const ConfigError&) {
          continue;
        }
        ++accepted;
        const Costs costs{1.0 + below(9), 1.0 + below(9), 1.0 + below(9), 1.0 * below(3)};
        ASSERT_NO_THROW(simulate(schedule, costs)) << to_text(schedule);
        continue;
      }
    }
    if (schedule.forward_only() != forward) continue;  // its only backward fell out: a forward pass
    ASSERT_THROW(check(schedule), ConfigError) << to_text(schedule);
  }
  EXPECT_GT(accepted, 20);
}

TEST(Generators, LargePipelinesAreQuick) {
  const Schedule schedule = one_f_one_b({64, 512, 1});
  check(with_communication(schedule));
  EXPECT_NEAR(simulate(schedule, {}).bubble, 63.0 / 575, 1e-12);
}

TEST(Draw, Text) {
  const Schedule schedule = gpipe({2, 1, 1});
  EXPECT_EQ(
      draw_text(schedule, simulate(schedule, {})),
      "rank 0 | F0 .........B0---\n"
      "rank 1 | ...F0 B0---\n"
      "gpipe: 2 stages, 1 micro-batches, 2 chunks; makespan 6, bubble 50.0 %, own bubble 50.0 "
      "%, peak activations [1, 1]\n");
}

TEST(Draw, SvgTraceAndJson) {
  const Schedule schedule = one_f_one_b({2, 3, 1});
  const Costs costs;
  const Simulation simulation = simulate(schedule, costs);
  EXPECT_THAT(draw_svg(schedule, simulation), HasSubstr("<title>1B2 "));
  const base::Json trace = chrome_trace(schedule, simulation);
  EXPECT_EQ(trace["traceEvents"].size(), 2u + 12u);
  EXPECT_EQ(trace["traceEvents"][1]["name"], "0F0");
  EXPECT_EQ(trace["traceEvents"][1]["dur"], 1000);
  const base::Json json = to_json(schedule, costs, simulation);
  EXPECT_EQ(json["schedule"], "1f1b");
  EXPECT_EQ(json["chunks"], 1);
  EXPECT_EQ(json["bubble"], simulation.bubble);
  EXPECT_EQ(json["program"][1][1], "1B0");
  EXPECT_EQ(json["peak_activations"], base::Json({2.0, 1.0}));
}

}  // namespace
}  // namespace trireme::schedule
