#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "tests/data/data_support.h"
#include "trireme/data/oslo.h"

namespace trireme::data {
namespace {

using base::ConfigError;
using base::FormatError;
using base::Json;
using ::testing::HasSubstr;
using Ids = std::vector<int64_t>;

const Ids kLengths{3, 5, 2, 7, 4, 6, 1, 8, 3, 5};

/// Documents of the golden vectors' lengths; token i of all has id i.
std::string golden(const TemporaryFolder& folder, IndexFormat format) {
  IndexedWriter writer(folder / "g", base::DType::i32, format);
  int64_t next = 0;
  for (int64_t length : kLengths) {
    Ids ids(length);
    for (int64_t& id : ids) id = next++;
    writer.add_sequence(std::span<const int64_t>(ids));
    writer.end_document();
  }
  writer.finish();
  return folder / "g";
}

TEST(DatasetForCausalLM, GivesOslosSamplesInEveryMode) {
  TemporaryFolder folder;
  std::vector<std::vector<Ids>> all;
  for (const char* mode : {"mmap", "lazy", "cached"}) {
    DatasetForCausalLM dataset(golden(folder, format_of(access_of(mode))),
                               {{"max_seq_length", 8}, {"binarization_impl", mode}});
    EXPECT_EQ(dataset.order().documents, (Ids{8, 1, 5, 0, 7, 2, 9, 4, 3, 6}));
    EXPECT_EQ(dataset.order().order, (Ids{3, 1, 0, 4, 5, 2}));
    auto& samples = all.emplace_back();
    std::set<int64_t> guessed;
    for (int64_t i = 0; i < dataset.size(); ++i) {
      samples.push_back(dataset.tokens(i));
      EXPECT_EQ(samples.back().size(), 8u);
      guessed.insert(samples.back().begin() + 1, samples.back().end());
      auto f = read_fields(dataset, i);
      EXPECT_EQ(f["input_ids"].size(), 7u);
      EXPECT_EQ(f["labels"][6], static_cast<double>(samples.back()[7]));
    }
    EXPECT_EQ(guessed.size(), 42u) << "each token of the cuts is guessed once";
    EXPECT_EQ(read_fields(dataset, 6), read_fields(dataset, 0));
  }
  EXPECT_EQ(all[0], all[1]);
  EXPECT_EQ(all[0], all[2]);
  // Sample 2 is cut 0: it begins with document 8 and then document 1.
  EXPECT_EQ(all[0][2], (Ids{36, 37, 38, 3, 4, 5, 6, 7}));
}

// OSLO refused splits below a tenth, took indices of other weights from its cache and gave an empty
// split length 0.
TEST(DatasetForCausalLM, SplitsMayBeSmallButNotEmpty) {
  TemporaryFolder folder;
  const auto path = golden(folder, IndexFormat::megatron);
  const auto tokens = [&](double begin, double end) {
    DatasetForCausalLM dataset(
        path, {{"max_seq_length", 3}, {"start_weight", begin}, {"end_weight", end}});
    std::set<int64_t> seen;
    for (int64_t i = 0; i < dataset.size(); ++i)
      for (int64_t id : dataset.tokens(i)) seen.insert(id);
    return seen;
  };
  EXPECT_EQ(*tokens(0.94, 1.0).begin(), 39);
  EXPECT_LT(*tokens(0.0, 0.5).rbegin(), 21);
  EXPECT_GE(*tokens(0.5, 1.0).begin(), 21);
  EXPECT_THAT(message_of<ConfigError>([&] { tokens(0.3, 0.3); }),
              HasSubstr("has 0 documents of 0 tokens; a sample takes 3"));
  EXPECT_THAT(message_of<ConfigError>([&] { DatasetForCausalLM(path, Json::object()); }),
              HasSubstr("give max_seq_length"));
  EXPECT_THAT(message_of<ConfigError>([&] {
                DatasetForCausalLM(path, {{"max_seq_length", 8}, {"end_wieght", 0.5}});
              }),
              HasSubstr("did you mean end_weight?"));
}

TEST(DatasetBlender, GivesOslosOrder) {
  TemporaryFolder folder;
  const auto path = golden(folder, IndexFormat::megatron);
  const auto make = [&](int64_t length) {
    return std::make_shared<DatasetForCausalLM>(path, Json{{"max_seq_length", length}});
  };
  auto six = make(8);  // 6 samples
  DatasetBlender by_weight({six, six}, std::vector<double>{0.7, 0.3});
  Ids datasets, samples;
  for (int64_t i = 0; i < 10; ++i) {
    datasets.push_back(by_weight.place(i).dataset);
    samples.push_back(by_weight.place(i).sample);
  }
  EXPECT_EQ(datasets, (Ids{0, 1, 0, 0, 1, 0, 0, 1, 0, 0}));
  EXPECT_EQ(samples, (Ids{0, 0, 1, 2, 1, 3, 4, 2, 5, 6}));
  DatasetBlender by_length({six, six, six});
  EXPECT_EQ(by_length.size(), 18);
  for (int64_t i = 0; i < 9; ++i) EXPECT_EQ(by_length.place(i).dataset, i % 3);
}

TEST(InfiniteDataLoader, GoesOnInAnotherOrderEachEpochAndResumesAnywhere) {
  TemporaryFolder folder;
  auto dataset = std::make_shared<DatasetForCausalLM>(golden(folder, IndexFormat::megatron),
                                                      Json{{"max_seq_length", 4}});  // 14 samples
  const DistributedOptions first{.num_replicas = 2, .rank = 0},
      second{.num_replicas = 2, .rank = 1};
  InfiniteDataLoader a(dataset, first, 3), b(dataset, second, 3);
  ASSERT_EQ(a.batches_per_epoch(), 3);
  std::vector<Ids> epochs;
  for (int epoch = 0; epoch < 3; ++epoch) {
    Ids order;
    for (int batch = 0; batch < 3; ++batch) {
      const auto at = a.position();
      InfiniteDataLoader resumed(dataset, first, 3, false, at);
      for (InfiniteDataLoader* loader : {&a, &b}) {
        const Batch rows = loader->next();
        EXPECT_EQ(rows.rows(), batch == 2 ? 1 : 3);
        for (int64_t i = 0; i < rows.rows(); ++i) order.push_back(rows.fields[0].values[3 * i]);
        if (loader == &a) { EXPECT_EQ(resumed.next().fields[0].values, rows.fields[0].values); }
      }
    }
    EXPECT_EQ(std::set<int64_t>(order.begin(), order.end()).size(), 14u)
        << "the ranks together read each sample once";
    epochs.push_back(order);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  InfiniteDataLoader dropping(dataset, first, 3, true);
  EXPECT_EQ(dropping.batches_per_epoch(), 2);
  EXPECT_THROW(InfiniteDataLoader(dataset, first, 8, true), ConfigError);
}

TEST(DatasetPreprocessor, TakesTextsLinesAndJsonLines) {
  TemporaryFolder folder;
  std::shared_ptr<const text::Tokenizer> tokenizer =
      text::Tokenizer::load(word_piece(folder, {"a", "b", "c"}));
  std::ofstream(folder / "in.jsonl")
      << "{\"text\": \"a b\"}\n\n{\"text\": \"\"}\n{\"text\": \"c\"}\n";
  for (const char* mode : {"mmap", "lazy", "cached"}) {
    for (const char* spelling : {"chunk_size", "chunksize"}) {
      DatasetPreprocessor preprocessor(
          tokenizer, {{spelling, 1}, {"binarization_impl", mode}, {"eod_token_id", 3}});
      EXPECT_EQ(preprocessor.preprocess(DatasetPreprocessor::open_jsonl(folder / "in", "text"),
                                        folder / "out"),
                2)
          << "an empty document is left out";
      IndexedDataset data(folder / "out");
      EXPECT_EQ(data.format(), format_of(access_of(mode)));
      EXPECT_EQ(data.dtype(), base::DType::i32);
      Ids ids(5);
      ASSERT_EQ(data.tokens(), 5);
      data.read(0, 5, ids.data());
      EXPECT_EQ(ids, (Ids{5, 6, 3, 7, 3}));
    }
  }
  std::ofstream(folder / "in.txt") << "a\nb";
  for (bool keep : {true, false}) {
    auto lines = DatasetPreprocessor::open_lines(folder / "in.txt", keep);
    EXPECT_EQ(lines(), keep ? "a\n" : "a");
    EXPECT_EQ(lines(), "b");
    EXPECT_EQ(lines(), std::nullopt);
  }
  // OSLO looked for the missing id in the wrong variable and failed later.
  EXPECT_THAT(message_of<ConfigError>([&] { DatasetPreprocessor preprocessor(tokenizer); }),
              HasSubstr("append_eod needs eod_token_id"));
  EXPECT_THAT(message_of<ConfigError>([&] {
                DatasetPreprocessor preprocessor(tokenizer, {{"eod_token_id", 8}});
              }),
              HasSubstr("not in the vocabulary of 8"));
  EXPECT_THAT(message_of<FormatError>([&] {
                std::ofstream(folder / "bad.jsonl") << "{\"text\": \"a\"}\n{\"body\": \"a\"}\n";
                auto texts = DatasetPreprocessor::open_jsonl(folder / "bad", "text");
                while (texts()) {
                }
              }),
              HasSubstr("bad.jsonl:2"));
}

}  // namespace
}  // namespace trireme::data
