// Which source gives sample n of a blend: what going through the samples one by one gives, in any
// order, from any thread, far along.

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <limits>
#include <numeric>
#include <thread>
#include <vector>

#include "tests/data/data_support.h"
#include "trireme/base/philox.h"
#include "trireme/data/blend.h"

namespace trireme::data {
namespace {

using Place = BlendOrder::Place;

std::vector<double> shares_of(int sources, uint64_t seed) {
  std::vector<double> weights;
  for (int i = 0; i < sources; ++i)
    weights.push_back(std::pow(base::uniform(base::philox(seed, {uint32_t(i), 0, 0, 0})[0]), -0.8));
  return normalized_weights(weights);
}

/// The rules as they are written down: every source is looked at for every sample.
std::vector<Place> one_by_one(const std::vector<double>& shares, BlendRule rule, int64_t count) {
  std::vector<int64_t> used(shares.size(), 0);
  std::vector<Place> places;
  for (int64_t n = 0; n < count; ++n) {
    int due = -1;
    double best = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < shares.size(); ++i) {
      const auto had = static_cast<double>(used[i]);
      const bool open = rule == BlendRule::megatron || had < shares[i] * static_cast<double>(n + 1);
      const double rank = rule == BlendRule::megatron
                              ? had - shares[i] * std::max(static_cast<double>(n), 1.0)
                              : (had + 1) / shares[i];
      if (open && rank < best) best = rank, due = static_cast<int>(i);
    }
    places.push_back({due, used[due]++});
  }
  return places;
}

TEST(BlendOrder, IsWhatTheRulesSay) {
  for (BlendRule rule : {BlendRule::exact, BlendRule::megatron}) {
    for (int sources : {1, 2, 3, 17, 600}) {
      for (uint64_t seed = 0; seed < 4; ++seed) {
        // Equal shares meet in every tie there is.
        const auto shares =
            seed == 0 ? std::vector<double>(sources, 1.0 / sources) : shares_of(sources, seed);
        const int64_t count = sources == 600 ? 5000 : 20000;
        const auto expected = one_by_one(shares, rule, count);
        const BlendOrder order(shares, rule);
        for (int64_t n = 0; n < count; ++n)
          ASSERT_EQ(order.at(n), expected[n]) << sources << " " << n;
      }
    }
  }
}

TEST(BlendOrder, GivesASmallShareItsTurn) {
  const std::vector<double> shares = normalized_weights({1, 1e-5, 1e-300});
  const BlendOrder order(shares, BlendRule::exact);
  std::vector<int64_t> counts(3, 0);
  for (int64_t n = 0; n < 1'000'000; ++n) ++counts[order.at(n).dataset];
  EXPECT_NEAR(counts[1], 10, 1);
  EXPECT_LE(counts[2], 1);
}

// A million samples of many sources, asked for in order, backwards and anywhere.
TEST(BlendOrder, IsTheSameInAnyOrder) {
  constexpr int64_t kCount = 1'200'000;
  for (BlendRule rule : {BlendRule::exact, BlendRule::megatron}) {
    const auto shares = shares_of(40, 5);
    const auto expected = one_by_one(shares, rule, kCount);
    const BlendOrder order(shares, rule);
    EXPECT_EQ(order.at(kCount - 1), expected.back()) << "a run that goes on there";
    for (uint64_t i = 0; i < 300; ++i) {
      const auto n = static_cast<int64_t>(base::uniform_below(1, i, kCount));
      ASSERT_EQ(order.at(n), expected[n]) << n;
    }
    for (int64_t n = kCount - 1; n >= kCount - 30'000; --n)
      ASSERT_EQ(order.at(n), expected[n]) << n;
    for (int64_t n = 0; n < kCount; n += 1 + n % 3) ASSERT_EQ(order.at(n), expected[n]) << n;
  }
}

// What a sample costs is counted, not timed: some log2 of the sources, wherever it is asked for.
TEST(BlendOrder, LooksAtFewSourcesForASample) {
  constexpr int64_t kCount = 100'000;
  for (BlendRule rule : {BlendRule::exact, BlendRule::megatron}) {
    for (int sources : {8, 1000}) {
      for (uint64_t seed : {0, 7}) {
        const BlendOrder order(
            seed == 0 ? std::vector<double>(sources, 1.0 / sources) : shares_of(sources, seed), rule);
        for (int64_t n = 0; n < kCount; ++n) order.at(n);
        const double once = double(order.looks()) / kCount;
        EXPECT_LT(once, rule == BlendRule::exact ? 1.1 : 4 * std::log2(sources))
            << sources << " " << seed;
        const int64_t before = order.looks();
        order.at(kCount / 2);
        EXPECT_LT(double(order.looks() - before), 4200 * once + 4 * sources)
            << "from a state that was kept";
      }
    }
  }
}

// Of the rule `exact`, a run that goes on far along needs nothing of what lies before.
TEST(BlendOrder, ExactStartsAnywhere) {
  for (int sources : {2, 3, 17, 600}) {
    for (uint64_t seed = 0; seed < 6; ++seed) {
      auto shares = shares_of(sources, seed);
      if (seed == 0) shares.assign(sources, 1.0 / sources);
      for (int i = 0; seed == 1 && i < sources; ++i) shares[i] = 1.0 + i % 3;
      shares = normalized_weights(shares);
      const double slowest = 1 / *std::min_element(shares.begin(), shares.end());
      const auto count = static_cast<int64_t>(4 * slowest) + 20'000;
      if (count > 400'000) continue;
      const auto expected = one_by_one(shares, BlendRule::exact, count);
      for (uint64_t i = 0; i < 20; ++i) {
        const auto n = count - 1 - static_cast<int64_t>(base::uniform_below(seed, i, count / 2));
        const BlendOrder order(shares, BlendRule::exact);
        for (int64_t k = n; k < std::min(count, n + 50); ++k)
          ASSERT_EQ(order.at(k), expected[k]) << sources << " " << seed << " " << k;
        for (int64_t k : {n / 2, int64_t{0}, n - 1})
          ASSERT_EQ(order.at(k), expected[k]) << "back to " << k;
      }
      const BlendOrder far(shares, BlendRule::exact);
      const Place place = far.at(1'000'000'000'000);
      EXPECT_NEAR(double(place.sample), 1e12 * shares[place.dataset], 2);
      EXPECT_LT(double(far.looks()), 2 * slowest + 4 * sources + 100);
    }
  }
}

// More states than are kept: the distance between them grows, the places stay.
TEST(BlendOrder, KeepsBoundedMemoryFarAlong) {
  constexpr int64_t kFar = 5 * BlendOrder::kStates * (1 << 12) / 4;
  const std::vector<double> shares{0.5, 0.3, 0.2};
  const BlendOrder order(shares, BlendRule::exact);
  const auto expected = one_by_one(shares, BlendRule::exact, kFar);
  for (int64_t n :
       {kFar - 1, int64_t{0}, kFar / 2, kFar / 3, int64_t{4095}, kFar - 2, kFar / 3 + 1})
    EXPECT_EQ(order.at(n), expected[n]) << n;
  for (uint64_t i = 0; i < 300; ++i) {
    const auto n = static_cast<int64_t>(base::uniform_below(2, i, kFar));
    ASSERT_EQ(order.at(n), expected[n]) << n;
  }
}

// Threads that overtake one another do not start over: reading a million samples on four takes no
// more than a few times what one takes.
TEST(BlendOrder, ServesThreadsThatSwapTheirOrder) {
  constexpr int64_t kCount = 1'000'000;
  const auto shares = shares_of(40, 9);
  const auto expected = one_by_one(shares, BlendRule::exact, kCount);
  const BlendOrder order(shares, BlendRule::exact);
  std::vector<int64_t> wrong(4, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      // Within each run of 64 samples every thread takes its share from the end to the beginning.
      for (int64_t first = 0; first + 64 <= kCount; first += 64)
        for (int64_t i = 63 - t; i >= 0; i -= 4)
          wrong[t] += order.at(first + i) != expected[first + i];
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int64_t>(4, 0));
}

/// A dataset of one document of `count` ids that all are `id`, without waiting for the disk.
void write_source(const std::string& prefix, int64_t id, int64_t count) {
  std::ofstream index(prefix + ".idx", std::ios::binary), data(prefix + ".bin", std::ios::binary);
  const auto put = [](std::ostream& out, auto value) {
    out.write(reinterpret_cast<const char*>(&value), sizeof value);
  };
  index.write("MMIDIDX\0\0", 9);
  put(index, uint64_t{1});
  put(index, uint8_t{8});
  put(index, uint64_t{1});
  put(index, uint64_t{2});
  put(index, static_cast<int32_t>(count));
  for (int64_t word : {0, 0, 1}) put(index, word);
  for (int64_t i = 0; i < count; ++i) put(data, static_cast<uint16_t>(id));
}

// As many files as some systems let a process open, each in its share, on several threads.
TEST(Blend, OfSixHundredMappedDatasets) {
  constexpr int kSources = 600;
  TemporaryFolder folder;
  std::vector<Source> sources;
  for (int i = 0; i < kSources; ++i) {
    sources.push_back({.path = folder / fmt::format("d{}", i), .weight = 1.0 + i % 5});
    write_source(sources.back().path, i, 41);
  }
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit few{std::min<rlim_t>(1024, limit.rlim_max), limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  for (BlendRule rule : {BlendRule::exact, BlendRule::megatron}) {
    auto blend = open_datasets(sources, {.seq_length = 4, .seed = 1}, rule);
    EXPECT_EQ(blend->size(), 6000);
    std::vector<int64_t> indices(18000);
    std::iota(indices.begin(), indices.end(), int64_t{0});
    const Batch batch = read_batch(*blend, indices, indices, 8);
    std::vector<double> counts(kSources, 0);
    for (int64_t i = 0; i < 18000; ++i) counts[batch.fields[0].values[4 * i]] += 1;
    for (int i = 0; i < kSources; ++i) EXPECT_NEAR(counts[i], 10.0 * (1 + i % 5), 2) << i;
  }
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace
}  // namespace trireme::data
