#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "tests/data/data_support.h"
#include "trireme/data/indexed.h"
#include "trireme/data/loader.h"

namespace trireme::data {
namespace {

using base::ConfigError;
using Ids = std::vector<int64_t>;

/// Sample i holds the ids 10 i, 10 i + 1; reading sample `fails_at` throws.
class Tens : public Dataset {
 public:
  explicit Tens(int64_t fails_at = -1) : fails_at_(fails_at) {}
  int64_t size() const override { return 7; }
  std::string description() const override { return "tens"; }
  std::vector<FieldSpec> fields() const override { return causal_fields(2); }
  Identity identity() const override { return {}; }
  void read(int64_t index, Row row) const override {
    if (index == fails_at_) throw base::FormatError(fmt::format("sample {} is damaged", index));
    for (int64_t i = 0; i < 2; ++i)
      row[0].ids[i] = 10 * index + i, row[1].ids[i] = row[0].ids[i] + 1;
    ++reads_;
  }
  int64_t reads() const { return reads_; }

 private:
  int64_t fails_at_;
  mutable std::atomic<int64_t> reads_{0};
};

/// The samples that a batch holds, read from its ids; checks the shape of the fields.
Ids samples_of(const Batch& batch) {
  EXPECT_EQ(batch.fields.size(), 2u);
  EXPECT_EQ(batch.fields[0].name, "input_ids");
  EXPECT_EQ(batch.fields[1].name, "labels");
  Ids samples;
  for (const Field& field : batch.fields) {
    EXPECT_EQ(field.shape, (Ids{batch.rows(), 2}));
    EXPECT_EQ(std::ssize(field.values), batch.rows() * 2);
  }
  for (int64_t i = 0; i < batch.rows(); ++i) {
    samples.push_back(batch.fields[0].values[2 * i] / 10);
    EXPECT_EQ(batch.fields[1].values[2 * i], batch.fields[0].values[2 * i] + 1);
  }
  return samples;
}

TEST(Loader, LeavesOutFieldsThatARankDoesNotNeed) {
  Loader loader(std::make_shared<Tens>(), {.micro_batch_size = 2, .skip = {"input_ids"}});
  const Batch batch = loader.next()[0];
  EXPECT_FALSE(batch.fields[0].read);
  EXPECT_EQ(batch.fields[0].shape, (Ids{2, 2}));
  EXPECT_TRUE(batch.fields[0].values.empty());
  EXPECT_EQ(batch.fields[1].values, (Ids{1, 2, 11, 12}));
}

TEST(Loader, EveryLayoutReadsTheSameSteps) {
  auto dataset = std::make_shared<Tens>();
  const int steps = 4;
  int cells = 0;
  for (int dp : {1, 2, 3, 4}) {
    for (int64_t rows : {1, 2, 3}) {
      for (int64_t micro_batches : {1, 2, 5}) {
        for (int64_t first : {0, 5, 1000}) {
          const int64_t step_size = dp * rows * micro_batches;
          std::vector<Ids> seen(steps, Ids(step_size, -1));
          for (int rank = 0; rank < dp; ++rank) {
            Loader loader(dataset, {.micro_batch_size = rows,
                                    .micro_batches = micro_batches,
                                    .dp_rank = rank,
                                    .dp_size = dp,
                                    .first_sample = first});
            for (int step = 0; step < steps; ++step) {
              auto batches = loader.next();
              ASSERT_EQ(std::ssize(batches), micro_batches);
              for (int64_t m = 0; m < micro_batches; ++m) {
                Ids samples = samples_of(batches[m]);
                ASSERT_EQ(std::ssize(samples), rows);
                for (int64_t i = 0; i < rows; ++i) {
                  int64_t place = batches[m].samples[i];
                  EXPECT_EQ(place, m * dp * rows + rank * rows + i);
                  EXPECT_EQ(seen[step][place], -1) << "a row goes to one rank";
                  seen[step][place] = samples[i];
                }
              }
            }
          }
          for (int step = 0; step < steps; ++step) {
            for (int64_t i = 0; i < step_size; ++i)
              ASSERT_EQ(seen[step][i], first + step * step_size + i);
          }
          ++cells;
        }
      }
    }
  }
  EXPECT_EQ(cells, 4 * 3 * 3 * 3);
}

TEST(Loader, ResumesAtAnySample) {
  auto dataset = std::make_shared<Tens>();
  const LoaderOptions options{
      .micro_batch_size = 2, .micro_batches = 3, .dp_rank = 1, .dp_size = 2};
  Loader whole(dataset, options);
  std::vector<std::vector<Batch>> steps;
  for (int step = 0; step < 6; ++step) steps.push_back(whole.next());
  for (int start = 0; start < 6; ++start) {
    LoaderOptions later = options;
    later.first_sample = 12 * start;
    Loader resumed(dataset, later);
    for (int step = start; step < 6; ++step) {
      auto batches = resumed.next();
      for (size_t m = 0; m < 3; ++m) EXPECT_EQ(samples_of(batches[m]), samples_of(steps[step][m]));
    }
  }
}

TEST(Loader, CutsTheLastBatchAtTheEnd) {
  auto dataset = std::make_shared<Tens>();
  for (int64_t end = 0; end <= 30; ++end) {
    Ids all;
    for (int step = 0; step < 4; ++step) {
      for (int64_t m = 0; m < 2; ++m) {
        for (int rank = 0; rank < 2; ++rank) {
          Loader loader(dataset, {.micro_batch_size = 3,
                                  .micro_batches = 2,
                                  .dp_rank = rank,
                                  .dp_size = 2,
                                  .first_sample = 12 * step,
                                  .end_sample = end});
          Ids samples = samples_of(loader.next()[m]);
          all.insert(all.end(), samples.begin(), samples.end());
        }
      }
    }
    Ids expected(end);
    for (int64_t i = 0; i < end; ++i) expected[i] = i;
    EXPECT_EQ(all, expected);
  }
  Loader loader(dataset, {.micro_batch_size = 4, .end_sample = 6});
  EXPECT_EQ(loader.next()[0].rows(), 4);
  EXPECT_EQ(loader.next()[0].rows(), 2);
  EXPECT_EQ(loader.next()[0].rows(), 0);
  EXPECT_EQ(loader.next()[0].rows(), 0);
}

TEST(Loader, StepsOfChangingSizeLoseNoSample) {
  auto dataset = std::make_shared<Tens>();
  const auto size = [](int64_t consumed) {
    return consumed < 5 ? int64_t{5} : consumed < 12 ? 7 : 12;
  };
  for (int64_t first : {0, 5, 12}) {
    Ids all;
    std::vector<std::unique_ptr<Loader>> ranks;
    for (int rank = 0; rank < 2; ++rank)
      ranks.push_back(std::make_unique<Loader>(dataset, LoaderOptions{.micro_batch_size = 3,
                                                                      .micro_batches = 2,
                                                                      .dp_rank = rank,
                                                                      .dp_size = 2,
                                                                      .first_sample = first,
                                                                      .end_sample = 30,
                                                                      .batch_size = size}));
    for (int step = 0; step < 5; ++step) {
      std::vector<std::vector<Batch>> batches{ranks[0]->next(), ranks[1]->next()};
      for (size_t m = 0; m < 2; ++m)
        for (const auto& rank : batches) {
          Ids samples = samples_of(rank[m]);
          all.insert(all.end(), samples.begin(), samples.end());
        }
    }
    Ids expected;
    for (int64_t i = first; i < 30; ++i) expected.push_back(i);
    EXPECT_EQ(all, expected);
  }
  Loader large(dataset, {.batch_size = [](int64_t) { return 2; }});
  EXPECT_THROW(large.next(), base::InternalError);
}

TEST(Loader, RethrowsTheReadersErrorInItsPlace) {
  Loader loader(std::make_shared<Tens>(5), {.micro_batch_size = 2, .prefetch = 8});
  EXPECT_EQ(samples_of(loader.next()[0]), (Ids{0, 1}));
  EXPECT_EQ(samples_of(loader.next()[0]), (Ids{2, 3}));
  for (int again = 0; again < 2; ++again) {
    EXPECT_EQ(message_of<base::FormatError>([&] { loader.next(); }),
              "sample 5 (sample 5 of tens): sample 5 is damaged");
  }
}

TEST(Loader, WorkersChangeNothing) {
  auto dataset = std::make_shared<Tens>();
  for (int workers : {1, 2, 5}) {
    Loader loader(dataset, {.micro_batch_size = 7, .workers = workers});
    for (int64_t step = 0; step < 3; ++step) {
      Ids expected;
      for (int64_t i = 0; i < 7; ++i) expected.push_back(7 * step + i);
      EXPECT_EQ(samples_of(loader.next()[0]), expected);
    }
  }
  Loader failing(std::make_shared<Tens>(5), {.micro_batch_size = 7, .workers = 3});
  EXPECT_EQ(message_of<base::FormatError>([&] { failing.next(); }),
            "sample 5 (sample 5 of tens): sample 5 is damaged");
}

/// Two sources of windows of 4 ids, one of them with a file that `change` damages once they are open.
template <class Change>
std::string said_of_changed(int workers, Access access, Change&& change) {
  TemporaryFolder folder;
  std::vector<Source> sources;
  for (const char* name : {"web", "code"}) {
    IndexedWriter writer(folder / name, base::DType::i32);
    writer.add_sequence(std::vector<int64_t>(41, 7));
    writer.end_document();
    writer.finish();
    sources.push_back({.path = folder / name, .weight = 1,
                       .options = {{"access", access == Access::mmap ? "mmap" : "lazy"}}});
  }
  auto blend = open_datasets(sources, {.seq_length = 4, .seed = 3, .shuffle = false});
  Loader loader(blend, {.micro_batch_size = 4, .end_sample = 40, .workers = workers});
  change(folder / "code.bin");
  return message_of<base::FormatError>([&] {
    for (int step = 0; step < 10; ++step) loader.next();
  });
}

// Sample n of the blend, which sample of which file that is, and what happened to it.
TEST(Loader, AChangedFileIsNamedWithItsSample) {
  for (int workers : {1, 3}) {
    for (Access access : {Access::mmap, Access::lazy}) {
      EXPECT_THAT(said_of_changed(workers, access,
                                  [](const std::string& bin) {
                                    std::filesystem::resize_file(bin, 100);
                                  }),
                  ::testing::MatchesRegex(
                      "sample [0-9]+ \\(sample [0-9]+ of epoch [0-9]+ of .*code.bin\\): "
                      ".*code.bin changed its size while it was being read.*"));
      EXPECT_THAT(said_of_changed(workers, access,
                                  [](const std::string& bin) {
                                    std::filesystem::last_write_time(
                                        bin, std::filesystem::file_time_type::clock::now() +
                                                 std::chrono::hours(1));
                                  }),
                  ::testing::HasSubstr("code.bin was written to"));
    }
  }
}

/// Throws an E at sample 2.
template <class E>
class Failing : public Tens {
 public:
  explicit Failing(E error) : error_(std::move(error)) {}
  std::string origin(int64_t) const override { throw std::runtime_error("not known"); }
  void read(int64_t index, Row row) const override {
    if (index == 2) throw E(error_);
    Tens::read(index, row);
  }

 private:
  E error_;
};

template <class E>
std::string said_of(E error) {
  Loader loader(std::make_shared<Failing<E>>(std::move(error)),
                {.micro_batch_size = 4, .workers = 2});
  return message_of<std::conditional_t<std::is_base_of_v<base::Error, E>, E, base::InternalError>>(
      [&] { loader.next(); });
}

TEST(Loader, ErrorsOfEveryKindKeepItAndNameTheSample) {
  const std::string expected = "sample 2 (tens): gone";
  EXPECT_EQ(said_of(base::ConfigError("gone")), expected);
  EXPECT_EQ(said_of(base::FormatError("gone")), expected);
  EXPECT_EQ(said_of(base::CommError("gone")), expected);
  EXPECT_EQ(said_of(base::IoError("gone")), expected);
  EXPECT_EQ(said_of(base::InternalError("gone")), expected);
  EXPECT_EQ(said_of(std::out_of_range("gone")), expected);
}

TEST(Loader, ReadsAheadButNotWithoutBound) {
  auto dataset = std::make_shared<Tens>();
  {
    Loader loader(dataset, {.micro_batch_size = 2, .prefetch = 3});
    loader.next();
    for (int i = 0; i < 200 && dataset->reads() < 8; ++i) ::usleep(1000);
    EXPECT_GE(dataset->reads(), 8);
    ::usleep(20000);
    EXPECT_LE(dataset->reads(), 10);  // one step taken, three waiting, one in hand
  }                                   // and ends although nobody took the rest
}

TEST(Loader, DropsOrPadsTheLastStepWhenTold) {
  auto dataset = std::make_shared<Tens>();
  const auto steps = [&](LastBatch last, bool stand_in = false) {
    std::vector<std::vector<Ids>> all;
    for (int rank = 0; rank < 2; ++rank) {
      Loader loader(dataset, {.micro_batch_size = 2,
                              .micro_batches = 1,
                              .dp_rank = rank,
                              .dp_size = 2,
                              .end_sample = 6,
                              .last = last,
                              .stand_in = stand_in});
      auto& mine = all.emplace_back();
      for (int step = 0; step < 3; ++step) {
        const Batch batch = loader.next()[0];
        Ids& ids = mine.emplace_back();
        for (int64_t i = 0; i < batch.rows(); ++i) {
          ids.push_back(batch.fields[0].values[2 * i] / 10);
          if (batch.fields[1].values[2 * i] == kIgnoreLabel) ids.back() += 1000;
        }
      }
    }
    return all;
  };
  EXPECT_EQ(steps(LastBatch::shorter),
            (std::vector<std::vector<Ids>>{{{0, 1}, {4, 5}, {}}, {{2, 3}, {}, {}}}));
  EXPECT_EQ(steps(LastBatch::drop),
            (std::vector<std::vector<Ids>>{{{0, 1}, {}, {}}, {{2, 3}, {}, {}}}));
  // LiBai fills a short rank up with sample 0 and counts it; here what is filled up counts nothing.
  EXPECT_EQ(steps(LastBatch::pad),
            (std::vector<std::vector<Ids>>{{{0, 1}, {4, 5}, {}}, {{2, 3}, {1000, 1001}, {}}}));
  // One row alone where a rank would lack a micro-batch that another one has.
  EXPECT_EQ(steps(LastBatch::shorter, true),
            (std::vector<std::vector<Ids>>{{{0, 1}, {4, 5}, {}}, {{2, 3}, {1004}, {}}}));
}

/// A sample's number under every name that may be a label.
class Labelled : public Dataset {
 public:
  explicit Labelled(std::vector<FieldSpec> fields) : fields_(std::move(fields)) {}
  int64_t size() const override { return 5; }
  std::string description() const override { return "labelled"; }
  std::vector<FieldSpec> fields() const override { return fields_; }
  Identity identity() const override { return {}; }
  void read(int64_t index, Row row) const override {
    for (const Slot& slot : row)
      if (slot.ids) slot.ids[0] = index;
  }

 private:
  std::vector<FieldSpec> fields_;
};

TEST(Loader, PadsWithSamplesOfWhichNoLabelCounts) {
  const LoaderOptions padded{.micro_batch_size = 4, .end_sample = 6, .last = LastBatch::pad};
  Loader loader(std::make_shared<Labelled>(std::vector<FieldSpec>{{"input_ids"},
                                                                  {"labels"},
                                                                  {"next_sentence_label"},
                                                                  {"start_positions"}}),
                padded);
  loader.next();
  const Batch last = loader.next()[0];
  EXPECT_EQ(last.fields[0].values, (Ids{4, 5, 0, 1}));
  EXPECT_EQ(last.fields[1].values, (Ids{4, 5, kIgnoreLabel, kIgnoreLabel}));
  EXPECT_EQ(last.fields[2].values, (Ids{4, 5, kIgnoreLabel, kIgnoreLabel}));
  EXPECT_EQ(last.fields[3].values, (Ids{4, 5, 2147483647, 2147483647}));
  for (const FieldSpec& field :
       {FieldSpec{"pixel_values", {}, base::DType::f32}, FieldSpec{"labels", {}, base::DType::f32}}) {
    EXPECT_THAT(message_of<ConfigError>([&] {
                  Loader(std::make_shared<Labelled>(std::vector<FieldSpec>{field}), padded);
                }),
                ::testing::HasSubstr("labelled has no integer labels: take shorter or drop"));
  }
  EXPECT_EQ(last_batch_of("pad"), LastBatch::pad);
  EXPECT_THROW(last_batch_of("wrap"), ConfigError);
}

/// A matrix of floats and one label a sample.
class Pictures : public Dataset {
 public:
  int64_t size() const override { return 5; }
  std::string description() const override { return "pictures"; }
  std::vector<FieldSpec> fields() const override {
    return {{"pixel_values", {2, 3}, base::DType::f32}, {"labels"}};
  }
  Identity identity() const override { return {}; }
  void read(int64_t index, Row row) const override {
    for (int i = 0; i < 6; ++i) row[0].reals[i] = static_cast<float>(index) + 0.5F;
    row[1].ids[0] = index;
  }
};

TEST(Loader, CarriesFieldsOfAnyShapeAndType) {
  Loader loader(std::make_shared<Pictures>(), {.micro_batch_size = 3, .end_sample = 4});
  for (int64_t rows : {3, 1, 0}) {
    const Batch batch = loader.next()[0];
    ASSERT_EQ(batch.rows(), rows);
    ASSERT_EQ(batch.fields.size(), 2u);
    const Field &pixels = batch.fields[0], &labels = batch.fields[1];
    EXPECT_EQ(pixels.name, "pixel_values");
    EXPECT_EQ(pixels.dtype, base::DType::f32);
    EXPECT_EQ(pixels.shape, (Ids{rows, 2, 3}));
    EXPECT_EQ(std::ssize(pixels.reals), rows * 6);
    EXPECT_EQ(labels.shape, (Ids{rows}));
    for (int64_t i = 0; i < rows; ++i)
      EXPECT_EQ(pixels.reals[6 * i + 5], static_cast<float>(labels.values[i]) + 0.5F);
  }
}

TEST(Loader, RefusesImpossibleOptions) {
  auto dataset = std::make_shared<Tens>();
  const std::vector<LoaderOptions> bad{
      {.micro_batch_size = 0}, {.micro_batches = 0}, {.dp_size = 0},     {.dp_rank = 1},
      {.dp_rank = -1},         {.first_sample = -1}, {.end_sample = -2}, {.prefetch = 0}};
  for (const LoaderOptions& options : bad) EXPECT_THROW(Loader(dataset, options), ConfigError);
}

}  // namespace
}  // namespace trireme::data
