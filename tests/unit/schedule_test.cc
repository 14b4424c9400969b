#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

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
    const Schedule made = generate(name, {3, 4});
    for (const Schedule& schedule : {made, with_communication(made)}) {
      const Schedule read = parse("# a comment\n\n" + to_text(schedule) + " \n", "text");
      EXPECT_EQ(read.program, schedule.program);
      EXPECT_EQ(read.rank_of_chunk, schedule.rank_of_chunk);
      EXPECT_EQ(read.chunks, made.chunks);
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

TEST(Simulate, MessagesTakeTime) {
  const Schedule schedule = gpipe({3, 1, 1});
  const Costs costs{.f = 1, .i = 1, .w = 1, .comm = 0.5};
  EXPECT_EQ(simulate(schedule, costs).makespan, 3 * 3 + 4 * 0.5);
  EXPECT_EQ(simulate(with_communication(schedule), costs).makespan, 3 * 3 + 4 * 0.5);
}

TEST(Simulate, ChunksMayDiffer) {
  Costs costs;
  costs.chunks = {{.f = 1, .i = 2, .w = 3, .activation = 10},
                  {.f = 4, .i = 5, .w = 6, .activation = 1, .working = 100}};
  const Simulation one = simulate(gpipe({2, 1}), costs);
  EXPECT_EQ(one.makespan, 1 + 4 + 11 + 5);
  EXPECT_THAT(one.peak_activations, ElementsAre(10, 101));
  EXPECT_THAT(simulate(gpipe({2, 3}), costs).peak_activations, ElementsAre(30, 103));
  EXPECT_NEAR(one.idle[0], 15.0 / 21, 1e-12);
  const ChunkCosts again = recomputed({1, 2, 3, 10, 5}, 0.25);
  EXPECT_EQ(again.f, 1);
  EXPECT_EQ(again.i, 6);  // the forward once more, then both gradients
  EXPECT_EQ(again.w, 0);
  EXPECT_EQ(again.activation, 2.5);
  EXPECT_EQ(again.working, 12.5);
  costs.chunks.pop_back();
  EXPECT_THROW(simulate(gpipe({2, 1}), costs), ConfigError);
  costs.chunks = {{.f = -1}, {}};
  EXPECT_THAT(message_of<ConfigError>([&] {
                simulate(gpipe({2, 1}), costs);
              }),
              HasSubstr("costs of chunk 0: -1, 1, 1, 1, 0; expected"));
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
  EXPECT_NEAR(simulate(forward_only({2, 3}), {}).bubble_own, 0, 1e-12);
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

TEST(Check, AMistypedMicroBatchIsFoundWhereItStands) {
  const std::string last = "1F0 1B0 1F1 1B1 1F2 1B2 ";
  EXPECT_THAT(
      refusal("0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3\n" + last + "1F9 1B3"),
      HasSubstr(
          "rank 1, cell 7: 1F9 is of micro-batch 9, the highest there is, but rank 0 lacks 0F9"));
  EXPECT_THAT(refusal("0F0 0F1 0B0 0B1 0F2\n" + last), HasSubstr("rank 0 lacks 0B2"));
  EXPECT_THAT(refusal("0F0 0F2 0B0 0B2\n" + last), HasSubstr("rank 0 lacks 0F1"));
  EXPECT_THROW(parse("0F2147483647", "high"), base::FormatError);
}

TEST(Read, NamesTheKeyAndShowsNoRawBytes) {
  EXPECT_THAT(message_of<ConfigError>([] { read("/tmp", "--check"); }),
              HasSubstr("--check: /tmp: opening failed"));
  EXPECT_THAT(message_of<ConfigError>([] { read("/none/such", "train.dist.schedule_file"); }),
              testing::AllOf(HasSubstr("train.dist.schedule_file: /none/such"),
                             HasSubstr("--format schedule")));
  const std::string message =
      message_of<base::FormatError>([] { parse(std::string("\xff\xfe\0abc\x1b[m", 9), "raw"); });
  EXPECT_THAT(message, HasSubstr("'\\xff\\xfe\\x00abc\\x1b[m' is no action"));
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

TEST(Draw, Text) {
  EXPECT_EQ(draw_text(gpipe({2, 1}), simulate(gpipe({2, 1}), {})),
            "rank 0 | F0 .........B0---\n"
            "rank 1 | ...F0 B0---\n"
            "F forward, B backward; dots: idle\n"
            "gpipe: 2 stages, 1 micro-batch, 2 chunks; makespan 6, bubble 50.0 %, own bubble 50.0 "
            "%, peak activations [1, 1]\n");
  const Schedule v = generate("zb-v", {1, 1});
  EXPECT_THAT(draw_text(v, simulate(v, {})),
              HasSubstr("rank 0 | 0F0 1F0 1I0 0I0 1W0 0W0\n"
                        "F forward, I input gradient, W weight gradient, 1F0 is of chunk 1; dots"));
}

TEST(Draw, MeasuredTimelinesWithTinyActionsStayDrawable) {
  const Schedule schedule = parse("0F0 0F1 0I0 0W0 0I1 0W1", "mine");
  const Simulation measured = summarize(schedule,
                                        {{{{Op::RecvF, 0, 0}, 0, 1},
                                          {{Op::F, 0, 0}, 1, 2},
                                          {{Op::F, 0, 1}, 2, 2 + 1e-9},
                                          {{Op::I, 0, 0}, 3, 4},
                                          {{Op::W, 0, 0}, 4, 5},
                                          {{Op::I, 0, 1}, 5, 6},
                                          {{Op::W, 0, 1}, 6, 8}}},
                                        {});
  EXPECT_EQ(measured.makespan, 8);
  EXPECT_NEAR(measured.bubble, 2.0 / 8, 1e-9);
  EXPECT_NEAR(measured.bubble_own, 1.0 / 7, 1e-9);
  EXPECT_EQ(measured.peak_activations, std::vector<double>{2});
  EXPECT_LT(draw_text(schedule, measured).size(), 30000u);
  EXPECT_LT(draw_svg(schedule, measured).size(), 10000u);
  EXPECT_THAT(draw_measured(measured, simulate(schedule, {})),
              HasSubstr("rank 0           25.0 %          0.0 %       +25.0\n"));
}

TEST(Draw, FitsIntoAWidth) {
  const Schedule schedule = generate("zb-h1", {2, 16});
  Costs costs;
  costs.chunks = {{.f = 0.01, .i = 3, .w = 2}, {.f = 1.7, .i = 2.9, .w = 0.3}};
  const Simulation simulation = simulate(schedule, costs);
  const std::string rows = draw_text(schedule, simulation, 100);
  std::istringstream lines(rows.substr(0, rows.find("F forward")));
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 112u) << line;
  const std::string svg = draw_svg(schedule, simulation, 1600);
  const double width = std::stod(svg.substr(svg.find("width=\"") + 7));
  EXPECT_GT(width, 1600);
  EXPECT_LT(width, 1700);
  EXPECT_EQ(to_json(schedule, costs, simulation)["costs"]["chunks"][1]["f"], 1.7);
}

TEST(Draw, TheFileOfAScheduleIsReadBack) {
  const Schedule schedule = generate("zb-v", {2, 3});
  const std::string text = draw("schedule", schedule, {}, simulate(schedule, {}));
  EXPECT_THAT(text, testing::StartsWith("# zb-v: 2 stages, 3 micro-batches, 4 chunks\n"));
  EXPECT_EQ(parse(text, "own").program, schedule.program);
}

TEST(Draw, SvgTraceAndJson) {
  const Schedule schedule = one_f_one_b({2, 3, 1});
  const Costs costs;
  const Simulation simulation = simulate(schedule, costs);
  EXPECT_THAT(draw_svg(schedule, simulation), HasSubstr("<title>1B2 "));
  const base::Json trace = chrome_trace(schedule, simulation);
  EXPECT_EQ(trace["traceEvents"].size(), 1u + 2u + 12u);
  EXPECT_EQ(trace["traceEvents"][2]["name"], "0F0");
  EXPECT_EQ(trace["traceEvents"][2]["dur"], 1000);
  const base::Json json = to_json(schedule, costs, simulation);
  EXPECT_EQ(json["schedule"], "1f1b");
  EXPECT_EQ(json["chunks"], 1);
  EXPECT_EQ(json["bubble"], simulation.bubble);
  EXPECT_EQ(json["program"][1][1], "1B0");
  EXPECT_EQ(json["peak_activations"], base::Json({2.0, 1.0}));
}

}  // namespace
}  // namespace trireme::schedule
