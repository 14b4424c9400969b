#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "trireme/base/error.h"
#include "trireme/layout/stage_manager.h"
#include "trireme/schedule/choose.h"

namespace trireme::schedule {
namespace {

using testing::HasSubstr;

const Candidate& find(const Choice& choice, std::string_view name) {
  return *std::ranges::find(choice.candidates, name, &Candidate::name);
}

/// A model of that many blocks, in seconds and bytes, with a dear head.
Profile profile(int blocks) {
  Profile profile{.layers = {{.f = 0.1, .i = 0.1, .w = 0.1, .activation = 8}}, .comm = 0.05};
  for (int i = 0; i < blocks; ++i)
    profile.layers.push_back({.f = 1, .i = 1.1, .w = 0.9, .activation = 100});
  profile.layers.push_back({.f = 0.5, .i = 0.5, .w = 0.5, .activation = 20, .working = 50});
  return profile;
}

/// The question of a trainer: blocks over chunks, the embedding in front, the head behind.
Question question(int blocks, int ranks, int micro_batches) {
  Question question{.ranks = ranks, .micro_batches = micro_batches};
  question.costs = [blocks](int chunks) {
    std::vector<int> layers = layout::distribute_layers(blocks, chunks);
    ++layers.front(), ++layers.back();
    return cut(profile(blocks), layers);
  };
  question.search = 500'000;
  return question;
}

TEST(Choose, TakesTheFastestThatFits) {
  Question asked = question(8, 2, 8);
  const Choice roomy = choose(asked);
  ASSERT_GE(roomy.best, 0);
  const Candidate& best = roomy.candidates[roomy.best];
  for (const Candidate& candidate : roomy.candidates) {
    EXPECT_EQ(candidate.why_not, "") << candidate.name;
    EXPECT_GE(candidate.simulation.makespan, best.simulation.makespan * 0.998) << candidate.name;
  }
  // Of both, all of 4 blocks are held as often as there are micro-batches in flight.
  EXPECT_LT(best.peak, find(roomy, "gpipe").peak);

  asked.memory = 900;
  const Choice tight = choose(asked);
  ASSERT_GE(tight.best, 0);
  EXPECT_LE(tight.candidates[tight.best].peak, 900);
  EXPECT_THAT(find(tight, "gpipe").why_not, HasSubstr("the limit is 900"));
  for (const Candidate& candidate : tight.candidates)
    if (candidate.why_not.empty()) {
      EXPECT_LE(candidate.peak, 900);
    }
  // Zero-bubble schedules are planned below the limit instead of falling out.
  EXPECT_EQ(find(tight, "zb-2p").why_not, "");

  asked.memory = 100;
  const Choice none = choose(asked);
  EXPECT_EQ(none.best, -1);
  EXPECT_THAT(to_text(none), testing::Not(HasSubstr("<- best")));
  // Each shows the least that it can do.
  double least = std::numeric_limits<double>::infinity();
  for (const Candidate& candidate : none.candidates)
    if (candidate.peak > 0) least = std::min(least, candidate.peak);
  EXPECT_LT(least, find(none, "1f1b").peak);
  EXPECT_THAT(shortfall(none),
              HasSubstr(fmt::format("stays within 100; the least is {:g} with", least)));
  EXPECT_EQ(shortfall(tight), "");
}

TEST(Choose, EachRankIsPlannedToItsOwnLimit) {
  // The last rank's head is dear: of two micro-batches there it could hold one only, but rank 0
  // could hold both.
  Question asked{.ranks = 2, .micro_batches = 4};
  asked.costs = [](int chunks) {
    Costs costs{.comm = 0.1};
    for (int c = 0; c < chunks; ++c)
      costs.chunks.push_back(
          {.f = 2.0 / chunks, .i = 2.0 / chunks, .w = 2.0 / chunks, .activation = 2.0 / chunks});
    costs.chunks.back().activation += 1;
    return costs;
  };
  const Choice roomy = choose(asked);
  asked.memory = find(roomy, "1f1b").peak;
  const Choice tight = choose(asked);
  const Candidate& plain = find(tight, "1f1b");
  ASSERT_EQ(plain.why_not, "");
  for (std::string_view name : {"zb-h1", "zb-2p"}) {
    EXPECT_EQ(find(tight, name).why_not, "");
    EXPECT_LE(find(tight, name).simulation.makespan, plain.simulation.makespan) << name;
  }
}

TEST(Choose, OfEquallyFastOnesTheLowestPeakWins) {
  Question asked{.ranks = 4, .micro_batches = 8};
  asked.costs = [](int) { return Costs{}; };
  const Choice exact = choose(asked);
  EXPECT_EQ(exact.candidates[exact.best].name, "zb-v");
  // zb-v takes 25.5, v-half 27 with less memory, v-min 29.5 with least.
  asked.margin = 0.06;
  const Choice uncertain = choose(asked);
  EXPECT_EQ(uncertain.candidates[uncertain.best].name, "v-half");
  asked.margin = 0.2;
  EXPECT_EQ(choose(asked).candidates[choose(asked).best].name, "v-min");
}

TEST(Choose, AskedForANumberOfChunks) {
  Question asked = question(8, 2, 4);
  asked.chunks = 2;
  const Choice two = choose(asked);
  ASSERT_GE(two.best, 0);
  for (const Candidate& candidate : two.candidates) {
    EXPECT_EQ(candidate.chunks_per_rank, 2) << candidate.name;
    EXPECT_EQ(candidate.why_not, "") << candidate.name;
  }
  EXPECT_GE(std::ssize(two.candidates), 4);
  asked.chunks = 3;
  EXPECT_EQ(choose(asked).candidates.size(), 2u);  // gpipe and interleaved take any number
}

TEST(Choose, TheTableIsNarrowAndSaysItsUnits) {
  Question asked = question(4, 2, 4);
  asked.memory = 300;
  const std::string text = to_text(choose(asked), {"ms", "MiB"});
  EXPECT_THAT(text, HasSubstr("makespan ms"));
  EXPECT_THAT(text, HasSubstr("peak MiB"));
  EXPECT_THAT(text, HasSubstr("  no room\n"));
  EXPECT_THAT(text, HasSubstr("no room: a rank would hold more than 300.00 MiB\n"));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
}

TEST(Choose, EveryRankChoosesTheSame) {
  const Question asked = question(8, 3, 5);
  const Choice one = choose(asked), other = choose(asked);
  EXPECT_EQ(one.best, other.best);
  EXPECT_EQ(to_json(one), to_json(other));
  for (size_t i = 0; i < one.candidates.size(); ++i)
    EXPECT_EQ(one.candidates[i].schedule.program, other.candidates[i].schedule.program);
}

TEST(Choose, SaysWhyCandidatesFellOut) {
  const Choice choice = choose(question(4, 2, 4));
  const std::string text = to_text(choice);
  // 4 blocks are no 8 chunks; the shorter ones run.
  EXPECT_THAT(text, testing::ContainsRegex("interleaved +4 +not possible: .*4.*8"));
  EXPECT_THAT(text, testing::ContainsRegex("interleaved +2 +[0-9]"));
  EXPECT_THAT(text, HasSubstr("<- best\n"));
  const base::Json json = to_json(choice);
  int chosen = 0;
  for (const base::Json& row : json) chosen += row["chosen"].get<bool>();
  EXPECT_EQ(chosen, 1);
  EXPECT_EQ(json[0]["schedule"], "gpipe");
  EXPECT_EQ(json[0]["messages"], 2 * 4);
  EXPECT_FALSE(json[0].contains("volume"));
  Question sized = question(4, 2, 4);
  sized.message = 0.25;
  const Choice volumes = choose(sized);
  EXPECT_EQ(to_json(volumes)[0]["volume"], 2 * 4 * 0.25);
  EXPECT_THAT(to_text(volumes, {.time = "ms", .memory = "MiB"}), testing::ContainsRegex("sent MiB\ngpipe .* 2\\.00\n"));
}

TEST(Choose, ThePlainerOneWinsADraw) {
  Question asked{.ranks = 1, .micro_batches = 4};
  asked.costs = [](int) { return Costs{}; };
  const Choice choice = choose(asked);
  // gpipe is as fast, but holds all micro-batches.
  EXPECT_EQ(choice.candidates[choice.best].name, "1f1b");
}

TEST(Choose, CutAddsLayersUp) {
  const Costs costs = cut(profile(3), {2, 1, 2});
  EXPECT_EQ(costs.comm, 0.05);
  ASSERT_EQ(costs.chunks.size(), 3u);
  EXPECT_DOUBLE_EQ(costs.chunks[0].f, 1.1);
  EXPECT_DOUBLE_EQ(costs.chunks[2].w, 1.4);
  EXPECT_DOUBLE_EQ(costs.chunks[2].activation, 120);
  EXPECT_DOUBLE_EQ(costs.chunks[2].working, 50);
  EXPECT_THROW(cut(profile(3), {2, 1}), base::ConfigError);
}

}  // namespace
}  // namespace trireme::schedule
