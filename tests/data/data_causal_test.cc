#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "tests/data/data_support.h"
#include "trireme/base/philox.h"
#include "trireme/data/blend.h"
#include "trireme/data/causal.h"
#include "trireme/data/permutation.h"

namespace trireme::data {
namespace {

using base::ConfigError;
using base::DType;
using ::testing::HasSubstr;
using Ids = std::vector<int64_t>;

/// A dataset whose token i has id i: documents of the given lengths.
std::shared_ptr<const IndexedDataset> counting(const TemporaryFolder& folder,
                                               const std::vector<int64_t>& lengths) {
  IndexedWriter writer(folder / "d", DType::i32);
  int64_t next = 0;
  for (int64_t length : lengths) {
    Ids ids(length);
    std::iota(ids.begin(), ids.end(), next);
    next += length;
    writer.add_sequence(std::span<const int64_t>(ids));
    writer.end_document();
  }
  writer.finish();
  return std::make_shared<IndexedDataset>(folder / "d");
}

struct Sample {
  Ids input_ids, labels;
  auto operator<=>(const Sample&) const = default;
};

Sample read(const Dataset& dataset, int64_t index) {
  const auto length = static_cast<size_t>(dataset.fields()[0].size());
  Sample sample{Ids(length), Ids(length)};
  const Slot row[] = {{.ids = sample.input_ids.data()}, {.ids = sample.labels.data()}};
  dataset.read(index, row);
  return sample;
}

TEST(Permutation, IsABijectionOfEverySize) {
  for (int64_t size = 1; size <= 300; ++size) {
    for (uint64_t key : {0u, 1u, 77u}) {
      Permutation order(key, size);
      std::set<int64_t> seen;
      for (int64_t i = 0; i < size; ++i) seen.insert(order(i));
      ASSERT_EQ(std::ssize(seen), size);
      ASSERT_EQ(*seen.begin(), 0);
      ASSERT_EQ(*seen.rbegin(), size - 1);
    }
  }
  const int64_t large = 1'000'003;
  Permutation order(5, large);
  std::vector<bool> seen(large, false);
  for (int64_t i = 0; i < large; ++i) {
    ASSERT_FALSE(seen[order(i)]);
    seen[order(i)] = true;
  }
}

// Over many keys each element comes to each place equally often: chi-square of a size x size table.
TEST(Permutation, IsEven) {
  for (int64_t size : {2, 3, 5, 7, 16, 23}) {
    const int keys = 20000;
    std::vector<double> counts(size * size, 0);
    for (int k = 0; k < keys; ++k) {
      Permutation order(base::stream_key(9, "test", k), size);
      for (int64_t i = 0; i < size; ++i) counts[i * size + order(i)] += 1;
    }
    double expected = double(keys) / double(size), chi = 0,
           freedom = double((size - 1) * (size - 1));
    for (double c : counts) chi += (c - expected) * (c - expected) / expected;
    EXPECT_LT(chi, freedom + 5 * std::sqrt(2 * freedom)) << size;
  }
}

// The order is part of what a seed means: a change here changes every run.
TEST(Permutation, IsFixed) {
  Permutation order(1234, 10);
  Ids places;
  for (int64_t i = 0; i < 10; ++i) places.push_back(order(i));
  EXPECT_EQ(places, (Ids{3, 5, 0, 6, 9, 2, 7, 4, 1, 8}));
}

TEST(Causal, WindowsAdvanceBySeqLengthAndLabelsByOne) {
  TemporaryFolder folder;
  CausalDataset dataset(counting(folder, {3, 5, 2, 7}), {.seq_length = 4, .shuffle = false});
  ASSERT_EQ(dataset.size(), 4);
  EXPECT_EQ(read(dataset, 0), (Sample{{0, 1, 2, 3}, {1, 2, 3, 4}}));
  EXPECT_EQ(read(dataset, 3), (Sample{{12, 13, 14, 15}, {13, 14, 15, 16}}));
  EXPECT_EQ(read(dataset, 4), read(dataset, 0))
      << "every epoch of an unshuffled dataset is the same";
  EXPECT_THAT(dataset.description(), HasSubstr("4 documents, 17 tokens, 4 samples of 4"));
}

TEST(Causal, AnEpochTakesEachLabelOnceButForTheTail) {
  for (int64_t length : {1, 2, 3, 7, 64, 333}) {
    TemporaryFolder folder;
    std::vector<int64_t> lengths;
    for (int i = 0; i < 300; ++i) lengths.push_back((i * 37) % 11);  // empty documents among them
    auto tokens = counting(folder, lengths);
    CausalDataset dataset(tokens, {.seq_length = length, .seed = 3});
    ASSERT_EQ(dataset.size(), (tokens->tokens() - 1) / length);
    std::vector<Sample> previous;
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::set<int64_t> labels;
      std::vector<Sample> samples;
      for (int64_t i = 0; i < dataset.size(); ++i) {
        samples.push_back(read(dataset, epoch * dataset.size() + i));
        for (int64_t k = 0; k + 1 < length; ++k)
          ASSERT_EQ(samples.back().input_ids[k + 1], samples.back().labels[k]);
        labels.insert(samples.back().labels.begin(), samples.back().labels.end());
      }
      // Ids are distinct, so a doubled label would be missing here.
      EXPECT_EQ(std::ssize(labels), dataset.size() * length);
      EXPECT_LT(tokens->tokens() - 1 - std::ssize(labels), length);
      EXPECT_NE(samples, previous) << "epochs differ in order";
      previous = samples;
    }
  }
}

TEST(Causal, DocumentsStayWhole) {
  TemporaryFolder folder;
  auto tokens = counting(folder, {40, 30, 50, 20});
  CausalDataset dataset(tokens, {.seq_length = 139, .seed = 1});
  ASSERT_EQ(dataset.size(), 1);
  std::set<Ids> orders;
  for (int64_t epoch = 0; epoch < 40; ++epoch) {
    Sample sample = read(dataset, epoch);
    Ids all = sample.input_ids, order;
    all.push_back(sample.labels.back());
    for (size_t i = 0; i < all.size(); ++i) {
      if (i > 0 && all[i] == all[i - 1] + 1) continue;
      order.push_back(all[i]);
      if (i == 0) continue;
      EXPECT_THAT(all[i - 1], ::testing::AnyOf(39, 69, 119, 139)) << "a document ends there";
    }
    orders.insert(order);
  }
  EXPECT_GT(orders.size(), 10u);
}

TEST(Causal, OrderDependsOnSeedAlone) {
  TemporaryFolder folder;
  auto tokens = counting(folder, std::vector<int64_t>(100, 13));
  CausalDataset a(tokens, {.seq_length = 8, .seed = 1}), b(tokens, {.seq_length = 8, .seed = 1}),
      c(tokens, {.seq_length = 8, .seed = 2});
  int64_t differ = 0;
  for (int64_t i = 0; i < 2 * a.size(); ++i) {
    int64_t back = 2 * a.size() - 1 - i;
    ASSERT_EQ(read(a, back), read(b, back));  // in any order of reading
    differ += read(a, i) != read(c, i);
  }
  EXPECT_GT(differ, a.size());
}

TEST(Causal, RefusesWhatItCannotServe) {
  TemporaryFolder folder;
  auto tokens = counting(folder, {3, 5, 2});
  EXPECT_THAT(message_of<ConfigError>([&] { CausalDataset(tokens, {.seq_length = 10}); }),
              HasSubstr("has 10 tokens; seq_length 10 needs at least 11"));
  EXPECT_THAT(message_of<ConfigError>([&] { CausalDataset(tokens, {.seq_length = 0}); }),
              HasSubstr("seq_length is 0"));
  EXPECT_THAT(
      message_of<ConfigError>([&] { CausalDataset(tokens, {.seq_length = 4, .vocab_size = 6}); }),
      HasSubstr(
          "token 3 of document 1 (token 6 of all) has id 6; the model's vocabulary has 6 entries"));
  EXPECT_NO_THROW(CausalDataset(tokens, {.seq_length = 4, .vocab_size = 10}));
  EXPECT_THROW(open_datasets({}, {.seq_length = 4}), ConfigError);
  EXPECT_THROW(open_datasets({{folder / "d", 0.0}}, {.seq_length = 4}), ConfigError);
  EXPECT_EQ(open_datasets({{folder / "d", 2.0}}, {.seq_length = 4})->size(), 2);
}

TEST(Causal, PartsOfASplitShareNoDocument) {
  TemporaryFolder folder;
  auto tokens = counting(folder, std::vector<int64_t>(40, 5));
  std::set<int64_t> seen;
  size_t labels = 0;
  for (const char* part : {"train", "valid", "test"}) {
    CausalDataset dataset(tokens, {.seq_length = 3}, {.split = "80,15,5", .part = part});
    for (int64_t i = 0; i < dataset.size(); ++i) {
      const Sample sample = read(dataset, i);
      seen.insert(sample.labels.begin(), sample.labels.end());
      labels += sample.labels.size();
    }
  }
  EXPECT_EQ(seen.size(), labels) << "no token is a label in two parts";
  EXPECT_THAT(message_of<ConfigError>([&] {
                CausalDataset(tokens, {.seq_length = 3}, {.split = "999,1", .part = "valid"});
              }),
              HasSubstr("part valid of the split 999,1 holds none of its 40 documents"));
}

TEST(Causal, MegatronOrderPredictsEachTokenButTheFirstOnceAnEpoch) {
  TemporaryFolder folder;
  auto tokens = counting(folder, {3, 5, 2, 7, 4, 6, 1, 8, 3, 6});  // 45 tokens
  CausalDataset dataset(tokens, {.seq_length = 4}, {.order = "megatron", .seed = 42});
  ASSERT_EQ(dataset.size(), 11);
  std::set<int64_t> labels;
  for (int64_t i = 0; i < 11; ++i) {
    const Sample sample = read(dataset, i);
    labels.insert(sample.labels.begin(), sample.labels.end());
    EXPECT_EQ(Ids(sample.input_ids.begin() + 1, sample.input_ids.end()),
              Ids(sample.labels.begin(), sample.labels.end() - 1));
  }
  EXPECT_EQ(labels.size(), 44u);
  EXPECT_THAT(message_of<ConfigError>([&] { read(dataset, 11); }),
              HasSubstr("sample 11 lies beyond the 11 of order megatron; set the option samples"));
  CausalDataset longer(tokens, {.seq_length = 4}, {.order = "megatron", .samples = 30, .seed = 42});
  EXPECT_GE(longer.size(), 30);
}

// A blend asks each source for its share and half a percent more, as Megatron-LM does.
TEST(Causal, MegatronOrderTakesItsLengthFromTheRun) {
  TemporaryFolder folder;
  counting(folder, {30, 31});
  const base::Json megatron = {{"order", "megatron"}};
  const auto open = [&](std::vector<Source> sources) {
    return open_datasets(sources, {.seq_length = 4, .seed = 5, .run_samples = 100})->size();
  };
  const Source source{.path = folder / "d", .weight = 1, .options = megatron};
  EXPECT_EQ(open({source}), 106);  // 7 epochs of 61 tokens hold 100 samples
  EXPECT_EQ(open({source, source}), 60 + 60);
}

TEST(Causal, PositionsAndSegmentsStartAnewAfterADocument) {
  TemporaryFolder folder;
  IndexedWriter writer(folder / "d", DType::i32);
  for (const Ids& ids : {Ids{5, 6, 0}, Ids{7, 0}, Ids{8, 9, 10, 0}}) {
    writer.add_sequence(std::span<const int64_t>(ids));
    writer.end_document();
  }
  writer.finish();
  const base::Json all = {{"reset_position_ids", true},
                          {"reset_attention_mask", true},
                          {"eod_mask_loss", true},
                          {"eod", 0}};
  auto dataset = open_causal(folder / "d", all, {.seq_length = 8, .shuffle = false});
  std::vector<std::string> names;
  for (const FieldSpec& field : dataset->fields()) names.push_back(field.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"input_ids", "labels", "position_ids", "segment_ids"}));
  std::vector<Ids> fields(4, Ids(8));
  const Slot row[] = {{.ids = fields[0].data()},
                      {.ids = fields[1].data()},
                      {.ids = fields[2].data()},
                      {.ids = fields[3].data()}};
  dataset->read(0, row);
  EXPECT_EQ(fields[0], (Ids{5, 6, 0, 7, 0, 8, 9, 10}));
  EXPECT_EQ(fields[1], (Ids{6, 0, -100, 0, -100, 9, 10, 0}));
  EXPECT_EQ(fields[2], (Ids{0, 1, 2, 0, 1, 0, 1, 2}));
  EXPECT_EQ(fields[3], (Ids{0, 0, 0, 1, 1, 2, 2, 2}));
  EXPECT_THAT(message_of<ConfigError>([&] {
                open_causal(folder / "d", {{"reset_position_ids", true}}, {.seq_length = 4});
              }),
              HasSubstr("need the id that ends a document"));
  EXPECT_THAT(message_of<ConfigError>([&] {
                open_causal(folder / "d", {{"reset_positions", true}}, {.seq_length = 4});
              }),
              HasSubstr("unknown option 'reset_positions', did you mean reset_position_ids?"));
  EXPECT_THAT(message_of<ConfigError>([&] {
                open_causal(folder / "d", {{"order", "shuffled"}}, {.seq_length = 4});
              }),
              HasSubstr("options of tokens.order: expected one of random, sequential, megatron"));
}

/// `size` samples whose id is `base` + index within the endless sequence.
class Numbers : public Dataset {
 public:
  Numbers(int64_t size, int64_t base) : size_(size), base_(base) {}
  int64_t size() const override { return size_; }
  std::string description() const override { return "numbers"; }
  void read(int64_t index, Row row) const override { *row[0].ids = *row[1].ids = base_ + index; }
  std::vector<FieldSpec> fields() const override { return causal_fields(1); }
  Identity identity() const override { return {}; }

 private:
  int64_t size_, base_;
};

TEST(Blend, IsNeverOffByASample) {
  for (int round = 0; round < 60; ++round) {
    const int n = 1 + static_cast<int>(base::uniform_below(1, round, 40));
    std::vector<std::shared_ptr<const Dataset>> datasets;
    std::vector<double> weights, used(n, 0);
    for (int i = 0; i < n; ++i) {
      datasets.push_back(std::make_shared<Numbers>(10, 0));
      weights.push_back(std::pow(base::uniform(base::philox(round, {uint32_t(i), 0, 0, 0})[0]),
                                 -0.2 * (round % 10)));
    }
    if (round == 0) weights.assign(n, 1.0);
    BlendDataset blend(datasets, weights);
    double sum = std::accumulate(weights.begin(), weights.end(), 0.0), worst = 0;
    for (int64_t k = 0; k < 3000; ++k) {
      auto place = blend.place(k);
      ASSERT_EQ(place.sample, used[place.dataset]) << "no sample is skipped or repeated";
      used[place.dataset] += 1;
      for (int i = 0; i < n; ++i)
        worst = std::max(worst, std::abs(used[i] - weights[i] / sum * double(k + 1)));
    }
    EXPECT_LT(worst, 1.0 + 1e-9) << n << " datasets";
  }
}

TEST(Blend, ReadsInAnyOrder) {
  BlendDataset blend({std::make_shared<Numbers>(6, 0), std::make_shared<Numbers>(4, 1000)},
                     {0.7, 0.3});
  EXPECT_EQ(blend.size(), 10);
  Ids forward, backward;
  for (int64_t i = 0; i < 40; ++i) forward.push_back(read(blend, i).input_ids[0]);
  for (int64_t i = 39; i >= 0; --i) backward.insert(backward.begin(), read(blend, i).input_ids[0]);
  EXPECT_EQ(forward, backward);
  EXPECT_EQ(std::count_if(forward.begin(), forward.end(), [](int64_t id) { return id < 1000; }),
            28);
  EXPECT_THAT(blend.description(), HasSubstr("0.7000  numbers"));
}

// OSLO's helper counted sources in a byte.
TEST(Blend, TakesMoreThan255Sources) {
  std::vector<std::shared_ptr<const Dataset>> many;
  for (int i = 0; i < 300; ++i) many.push_back(std::make_shared<Numbers>(4, 1000 * i));
  for (BlendRule rule : {BlendRule::exact, BlendRule::megatron}) {
    BlendDataset blend(many, std::vector<double>(300, 0.1), rule);
    std::set<int64_t> ids;
    for (int64_t i = 0; i < 1200; ++i) ids.insert(read(blend, i).input_ids[0]);
    EXPECT_EQ(ids.size(), 1200u);
    EXPECT_EQ(*ids.rbegin(), 299003);
  }
}

TEST(Blend, SaysThatWeightsWereNormalized) {
  const std::vector<std::shared_ptr<const Dataset>> two{std::make_shared<Numbers>(2, 0),
                                                        std::make_shared<Numbers>(2, 9)};
  EXPECT_THAT(BlendDataset(two, {3, 1}).description(),
              HasSubstr("(the weights add up to 4; these are their shares)\n  0.7500"));
  EXPECT_THAT(BlendDataset(two, {0.75, 0.25}).description(), ::testing::Not(HasSubstr("add up")));
}

TEST(Blend, NestsInAConfiguration) {
  TemporaryFolder folder;
  counting(folder, {50});
  const base::Json inner = {
      {"sources",
       {{{"path", folder / "d"}, {"weight", 1}}, {{"path", folder / "d"}, {"weight", 3}}}}};
  auto blend = open_datasets({{.path = "", .weight = 1, .type = "blend", .options = inner},
                              {.path = folder / "d", .weight = 1}},
                             {.seq_length = 4});
  EXPECT_EQ(blend->size(), 36);
  EXPECT_THAT(message_of<ConfigError>([&] {
                open_datasets({{.path = "", .type = "blend", .options = {{"source", 1}}}},
                              {.seq_length = 4});
              }),
              HasSubstr("unknown option 'source'"));
  EXPECT_THAT(message_of<ConfigError>(
                  [&] { open_datasets({{.path = "", .type = "blend"}}, {.seq_length = 4}); }),
              HasSubstr("expected sources"));
}

TEST(Blend, NestsAndEachSourceCountsItsOwnEpochs) {
  auto inner = std::make_shared<BlendDataset>(
      std::vector<std::shared_ptr<const Dataset>>{std::make_shared<Numbers>(2, 0),
                                                  std::make_shared<Numbers>(2, 100)},
      std::vector<double>{1, 1});
  BlendDataset outer({inner, std::make_shared<Numbers>(2, 1000)}, {3, 1});
  std::map<int64_t, Ids> of;
  for (int64_t i = 0; i < 16; ++i) {
    const int64_t id = read(outer, i).input_ids[0];
    of[id < 100 ? 0 : id < 1000 ? 1 : 2].push_back(id);
  }
  EXPECT_EQ(of[0], (Ids{0, 1, 2, 3, 4, 5})) << "sample 2 on is the next epoch";
  EXPECT_EQ(of[1], (Ids{100, 101, 102, 103, 104, 105}));
  EXPECT_EQ(of[2], (Ids{1000, 1001, 1002, 1003}));
}

TEST(Blend, RefusesBadWeights) {
  std::vector<std::shared_ptr<const Dataset>> two{std::make_shared<Numbers>(6, 0),
                                                  std::make_shared<Numbers>(4, 0)};
  for (double bad : {0.0, -1.0, std::nan(""), double(INFINITY)}) {
    EXPECT_THAT(message_of<ConfigError>([&] {
                  BlendDataset(two, {1.0, bad});
                }),
                HasSubstr("expected a positive number"));
  }
  EXPECT_THROW(BlendDataset(two, {1.0}), ConfigError);
  EXPECT_THROW(BlendDataset({}, {}), ConfigError);
  TemporaryFolder folder;
  two.push_back(
      std::make_shared<CausalDataset>(counting(folder, {50}), SampleOptions{.seq_length = 4}));
  EXPECT_THAT(
      message_of<ConfigError>([&] {
        BlendDataset(two, {1, 1, 1});
      }),
      HasSubstr("has samples of input_ids int64[4], labels int64[4]; the first of the blend has"));
}

}  // namespace
}  // namespace trireme::data
