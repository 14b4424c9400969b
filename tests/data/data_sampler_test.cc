#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "tests/data/data_support.h"
#include "trireme/data/draws.h"
#include "trireme/data/sampler.h"

namespace trireme::data {
namespace {

using base::ConfigError;
using ::testing::HasSubstr;
using Ids = std::vector<int64_t>;

Ids places(const Order& order, int64_t begin, int64_t end) {
  Ids examples;
  for (int64_t i = begin; i < end; ++i) examples.push_back(order.at(i));
  return examples;
}

TEST(Orders, TakeEachExampleOnceAnEpochAndAnotherOrderEachTime) {
  std::vector<double> weights(23);
  std::iota(weights.begin(), weights.end(), 1.0);
  for (const char* name : {"random", "cyclic", "weighted_once", "sequential"}) {
    auto order = make_order({.name = name, .weights = weights}, 23, 7);
    Ids all(23);
    std::iota(all.begin(), all.end(), int64_t{0});
    std::set<Ids> epochs;
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      Ids examples = places(*order, 23 * epoch, 23 * epoch + 23);
      epochs.insert(examples);
      EXPECT_TRUE(std::is_permutation(all.begin(), all.end(), examples.begin())) << name;
    }
    EXPECT_EQ(epochs.size(), std::string(name) == "sequential" ? 1u : 3u) << name;
  }
}

// What a resumed run asks for, in any order and from any place, is what an unbroken one saw.
TEST(Orders, AreFunctionsOfThePlace) {
  for (const char* name : {"random", "cyclic", "weighted", "weighted_once", "sequential"}) {
    const OrderOptions options{.name = name, .weights = {1, 2, 3, 4, 0.5}};
    auto order = make_order(options, 5, 3);
    const Ids whole = places(*order, 0, 40);
    for (int64_t start : {33, 12, 0, 39}) {
      auto resumed = make_order(options, 5, 3);
      EXPECT_EQ(places(*resumed, start, 40), Ids(whole.begin() + start, whole.end())) << name;
    }
  }
}

TEST(Orders, WeightsDecideHowOftenAndHowEarly) {
  const std::vector<double> weights{1, 3, 0, 4};
  auto drawn = make_order({.name = "weighted", .weights = weights}, 4, 9);
  std::map<int64_t, double> counts;
  for (int64_t example : places(*drawn, 0, 8000)) counts[example] += 1;
  EXPECT_NEAR(counts[0], 1000, 150);
  EXPECT_NEAR(counts[1], 3000, 200);
  EXPECT_EQ(counts[2], 0);
  auto once = make_order({.name = "weighted_once", .weights = weights}, 4, 9);
  double first = 0;
  for (int64_t epoch = 0; epoch < 2000; ++epoch) {
    first += once->at(4 * epoch) == 3;
    EXPECT_EQ(once->at(4 * epoch + 3), 2) << "what has no weight comes last";
  }
  EXPECT_NEAR(first / 2000, 0.5, 0.05);
}

TEST(Orders, RefuseWhatTheyCannotDraw) {
  const auto refusal = [](const OrderOptions& options, int64_t size) {
    return message_of<ConfigError>([&] { make_order(options, size, 1); });
  };
  EXPECT_THAT(refusal({.name = "shuffled"}, 3), HasSubstr("expected random, sequential, cyclic"));
  EXPECT_THAT(refusal({}, 0), HasSubstr("the dataset is empty"));
  EXPECT_THAT(refusal({.name = "weighted"}, 3), HasSubstr("0 weights for 3 examples"));
  EXPECT_THAT(refusal({.name = "weighted", .weights = {1, -1}}, 2),
              HasSubstr("example 1 has weight -1"));
  EXPECT_THAT(refusal({.name = "weighted", .weights = {0, 0}}, 2), HasSubstr("all weights are 0"));
}

// The values that OSLO's sampler gives.
TEST(DistributedProxySampler, GivesOslosIndices) {
  const Ids seven{0, 1, 2, 3, 4, 5, 6};
  const auto share = [&](int rank, bool shuffle) {
    return DistributedProxySampler(seven, {.num_replicas = 2, .rank = rank, .shuffle = shuffle})
        .indices();
  };
  EXPECT_EQ(share(0, false), (Ids{0, 2, 4, 6}));
  EXPECT_EQ(share(1, false), (Ids{1, 3, 5, 0}));
  EXPECT_EQ(share(0, true), (Ids{4, 5, 2, 1}));
  EXPECT_EQ(share(1, true), (Ids{0, 3, 6, 4}));
}

// OSLO's raised a TypeError where each rank had exactly one index.
TEST(DistributedProxySampler, ServesOneIndexARank) {
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_EQ(DistributedProxySampler({10, 11}, {.num_replicas = 2, .rank = rank, .shuffle = false})
                  .indices(),
              (Ids{10 + rank}));
  EXPECT_EQ(
      DistributedProxySampler({10, 11}, {.num_replicas = 7, .rank = 6, .shuffle = false}).indices(),
      (Ids{10}));
  EXPECT_THAT(message_of<ConfigError>([] {
                DistributedProxySampler({10, 11}, {.num_replicas = 3, .drop_last = true});
              }),
              HasSubstr("2 indices for 3 ranks"));
  EXPECT_THROW(DistributedProxySampler({1}, {.num_replicas = 2, .rank = 2}), ConfigError);
}

TEST(Draws, AreEvenAndFixed) {
  Draws draws(1), again(1);
  std::vector<double> counts(10, 0);
  double sum = 0;
  for (int i = 0; i < 10000; ++i) {
    counts[draws.below(10)] += 1;
    sum += draws.uniform();
  }
  for (double count : counts) EXPECT_NEAR(count, 1000, 150);
  EXPECT_NEAR(sum / 10000, 0.5, 0.02);
  EXPECT_EQ(again.word(), Draws(1).word());
  Ids items{1, 2, 3, 4, 5};
  again.shuffle(std::span(items));
  EXPECT_TRUE(std::is_permutation(items.begin(), items.end(), Ids{1, 2, 3, 4, 5}.begin()));
}

}  // namespace
}  // namespace trireme::data
