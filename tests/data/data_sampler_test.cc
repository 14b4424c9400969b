#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "tests/data/data_support.h"
#include "trireme/data/draws.h"
#include "trireme/data/legacy_random.h"
#include "trireme/data/loader.h"
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

/// Items 0, 1, ... in an order, as input_ids and labels of one number.
class Items : public Dataset {
 public:
  Items(int64_t size, const char* order, uint64_t seed)
      : size_(size), order_(make_order({.name = order}, size, seed)) {}
  int64_t size() const override { return size_; }
  std::string description() const override { return "items"; }
  std::vector<FieldSpec> fields() const override { return causal_fields(1); }
  Identity identity() const override { return {}; }
  void read(int64_t index, Row row) const override {
    *row[0].ids = *row[1].ids = order_->at(index);
  }

 private:
  int64_t size_;
  std::unique_ptr<const Order> order_;
};

/// What each rank gets in `steps` steps of a micro-batch each.
std::vector<Ids> stream(std::shared_ptr<const Dataset> items, LoaderOptions options, int steps) {
  std::vector<Ids> ranks;
  for (options.dp_rank = 0; options.dp_rank < options.dp_size; ++options.dp_rank) {
    Loader loader(items, options);
    Ids& mine = ranks.emplace_back();
    for (int step = 0; step < steps; ++step) {
      const std::vector<Batch> batches = loader.next();
      const Ids& items_of_step = batches[0].fields[0].values;
      mine.insert(mine.end(), items_of_step.begin(), items_of_step.end());
    }
  }
  return ranks;
}

// The vectors that LiBai's own tests of its samplers meant to check.
TEST(LibaisSamplers, EachItemOnceAnEpochInOrder) {
  auto items = std::make_shared<Items>(100, "sequential", 0);
  Ids expected(200);
  for (int64_t i = 0; i < 200; ++i) expected[i] = i % 100;
  EXPECT_EQ(stream(items, {.micro_batch_size = 4}, 50)[0], expected);
}

TEST(LibaisSamplers, SameSeedSameOrder) {
  const auto order = [](uint64_t seed) {
    return stream(std::make_shared<Items>(100, "cyclic", seed), {.micro_batch_size = 4}, 50)[0];
  };
  EXPECT_EQ(order(3), order(3));
  EXPECT_NE(order(3), order(4));
  Ids first = order(3);
  first.resize(100);
  EXPECT_EQ(first, torch_randperm(100, 3));
}

TEST(LibaisSamplers, ConsumedSamplesGoOnInTheSameStream) {
  for (const char* order : {"sequential", "cyclic", "random"}) {
    for (int ranks : {1, 2}) {
      auto items = std::make_shared<Items>(10, order, 5);
      const LoaderOptions options{.micro_batch_size = 4, .dp_size = ranks};
      const auto whole = stream(items, options, 25);
      LoaderOptions later = options;
      later.first_sample = 11 * 4 * ranks;  // after 11 iterations, in the middle of an epoch
      const auto resumed = stream(items, later, 14);
      for (int rank = 0; rank < ranks; ++rank)
        EXPECT_EQ(resumed[rank], Ids(whole[rank].begin() + 44, whole[rank].end())) << order;
    }
  }
}

TEST(LibaisSamplers, ASingleRoundPadsWithTheFirstItem) {
  auto items = std::make_shared<Items>(101, "sequential", 0);
  const LoaderOptions options{
      .micro_batch_size = 1, .dp_size = 2, .end_sample = 101, .last = LastBatch::pad};
  const auto ranks = stream(items, options, 51);
  EXPECT_EQ(ranks[0].size(), 51u);
  EXPECT_EQ(ranks[1].size(), 51u);
  EXPECT_EQ(ranks[0].back(), 100);
  EXPECT_EQ(ranks[1].back(), 0);
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
