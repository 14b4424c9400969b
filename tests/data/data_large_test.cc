// Beyond 32 bits: files of more than 4 GiB (holes, which take no disk), more than 2^31 tokens in a
// dataset and in a sequence, orders of more than 2^31 samples; and what is refused beyond its
// bound.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <vector>

#include "tests/data/data_support.h"
#include "trireme/data/causal.h"
#include "trireme/data/indexed.h"
#include "trireme/data/legacy_random.h"
#include "trireme/data/megatron_order.h"
#include "trireme/data/permutation.h"
#include "trireme/data/sampler.h"

namespace trireme::data {
namespace {

using base::ConfigError;
using ::testing::HasSubstr;
using Ids = std::vector<int64_t>;

constexpr int64_t kBillion = int64_t{1} << 30;

template <class T>
void put(std::ostream& out, T value) {
  out.write(reinterpret_cast<const char*>(&value), sizeof value);
}

/// A file of `size` zeros that are not stored, but for the 16-bit numbers in `ids` at their places.
void write_holes(const std::string& path, int64_t size,
                 const std::vector<std::pair<int64_t, uint16_t>>& ids) {
  const int fd = ::open(path.c_str(), O_CREAT | O_RDWR | O_TRUNC, 0644);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::ftruncate(fd, size), 0);
  for (const auto& [at, id] : ids) ASSERT_EQ(::pwrite(fd, &id, sizeof id, 2 * at), 2);
  struct stat now {};
  ASSERT_EQ(::fstat(fd, &now), 0);
  ::close(fd);
  ASSERT_LT(now.st_blocks * 512, 64 << 20) << "this file system stores holes";
}

/// A dataset of uint16 as Megatron-LM lays it out, one document a sequence.
void write_large(const std::string& prefix, const Ids& lengths,
                 const std::vector<std::pair<int64_t, uint16_t>>& ids) {
  std::ofstream index(prefix + ".idx", std::ios::binary);
  index.write("MMIDIDX\0\0", 9);
  put(index, uint64_t{1});
  put(index, uint8_t{8});
  put(index, static_cast<uint64_t>(lengths.size()));
  put(index, static_cast<uint64_t>(lengths.size() + 1));
  int64_t tokens = 0;
  for (int64_t length : lengths) put(index, static_cast<int32_t>(length));
  for (int64_t length : lengths) put(index, 2 * std::exchange(tokens, tokens + length));
  for (int64_t d = 0; d <= std::ssize(lengths); ++d) put(index, d);
  index.close();
  write_holes(prefix + ".bin", 2 * tokens, ids);
}

Ids ids_of(const IndexedDataset& data, int64_t begin, int64_t count) {
  Ids ids(count);
  data.read(begin, count, ids.data());
  return ids;
}

TEST(Large, FilesBeyondFourGigabytesAndTwoBillionTokens) {
  TemporaryFolder folder;
  const Ids lengths{kBillion, kBillion - 1, 777, kBillion};
  const int64_t last = 2 * kBillion - 1 + 777, tokens = last + kBillion;
  write_large(
      folder / "d", lengths,
      {{0, 11}, {2 * kBillion - 1, 22}, {2 * kBillion, 33}, {last + 5000, 44}, {tokens - 1, 55}});
  ASSERT_GT(std::filesystem::file_size(folder / "d.bin"), uintmax_t{1} << 32);
  for (Access access : {Access::mmap, Access::lazy}) {
    const IndexedDataset data(folder / "d", access);
    EXPECT_EQ(data.tokens(), tokens);
    EXPECT_EQ(data.documents(), 4);
    EXPECT_EQ(data.begin(3), last);
    EXPECT_EQ(data.length(3), kBillion);
    EXPECT_EQ(data.document_of(2 * kBillion), 2);
    EXPECT_EQ(data.document_of(tokens - 1), 3);
    EXPECT_EQ(ids_of(data, 2 * kBillion - 2, 4), (Ids{0, 22, 33, 0}));
    EXPECT_EQ(ids_of(data, last + 5000, 2), (Ids{44, 0}));
    EXPECT_EQ(ids_of(data, tokens - 2, 2), (Ids{0, 55}));

    // Samples of 1023: window w begins at token 1023 w, as they lie.
    const CausalDataset samples(std::make_shared<IndexedDataset>(data),
                                {.seq_length = 1023, .shuffle = false});
    EXPECT_EQ(samples.size(), (tokens - 1) / 1023);
    const int64_t window = (last + 5000) / 1023;
    ASSERT_GT(window * 1023, int64_t{1} << 31);
    EXPECT_EQ(read_fields(samples, window).at("input_ids")[(last + 5000) % 1023], 44);
    const CausalDataset shuffled(std::make_shared<IndexedDataset>(data),
                                 {.seq_length = 1023, .seed = 3});
    EXPECT_EQ(shuffled.size(), samples.size());
    for (int64_t i = 0; i < 100; ++i)
      EXPECT_EQ(read_fields(shuffled, i * (shuffled.size() / 50)).at("labels").size(), 1023u);
  }
}

TEST(Large, MegatronsOrderOverTwoBillionTokens) {
  TemporaryFolder folder;
  write_large(folder / "d", {kBillion, kBillion, kBillion}, {{3 * kBillion - 1, 7}});
  CausalOptions options;
  options.order = "megatron";
  options.seed = 1;
  const CausalDataset samples(std::make_shared<IndexedDataset>(folder / "d"),
                              {.seq_length = 1 << 20}, options);
  EXPECT_EQ(samples.size(), 3 * 1024 - 1);
}

// A sequence of more than 2^31 ids exists in the older index alone.
TEST(Large, ASequenceOfMoreThanTwoBillionTokens) {
  TemporaryFolder folder;
  const int64_t tokens = 2 * kBillion + 9;
  std::ofstream index(folder / "d.idx", std::ios::binary);
  index.write("TNTIDX\0\0", 8);
  for (int64_t word : {int64_t{1}, int64_t{8}, int64_t{2}, int64_t{1}, int64_t{1}, int64_t{2},
                       int64_t{0}, int64_t{1}, int64_t{0}, tokens, tokens, int64_t{0}, int64_t{1}})
    put(index, word);
  index.close();
  write_holes(folder / "d.bin", 2 * tokens, {{tokens - 1, 9}});
  const IndexedDataset data(folder / "d");
  EXPECT_EQ(data.length(0), tokens);
  EXPECT_EQ(ids_of(data, tokens - 2, 2), (Ids{0, 9}));
  CausalOptions options;
  options.order = "megatron";
  EXPECT_THAT(
      message_of<ConfigError>([&] {
        CausalDataset(std::make_shared<IndexedDataset>(data), {.seq_length = 1024}, options);
      }),
      HasSubstr("sequence 0 has 2147483657 tokens; order megatron takes 2147483647 at most"));
}

TEST(Large, RandomOrdersBeyondTwoBillionSamples) {
  for (int64_t size : {int64_t{1} << 33, (int64_t{1} << 40) + 7, int64_t{1} << 60}) {
    const Permutation order(5, size);
    std::set<int64_t> seen;
    int64_t high = 0;
    for (int64_t k = 0; k < 20000; ++k) {
      const int64_t at = size - 1 - k * (size / 20000), element = order(at);
      ASSERT_GE(element, 0);
      ASSERT_LT(element, size);
      seen.insert(element);
      high += element >= size / 2;
    }
    EXPECT_EQ(seen.size(), 20000u);
    EXPECT_NEAR(static_cast<double>(high), 10000, 400);
  }
  const auto order = make_order({.name = "random"}, int64_t{1} << 33, 1);
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 2000; ++i) seen.insert(order->at((int64_t{1} << 33) - 1000 + i));
  EXPECT_GE(seen.size(), 1999u) << "a thousand of either epoch";
  EXPECT_EQ(make_order({.name = "sequential"}, int64_t{1} << 33, 1)->at((int64_t{1} << 33) + 5), 5);
}

TEST(Large, TablesAreBoundedAndSaySo) {
  EXPECT_THAT(message_of<ConfigError>([] { make_order({.name = "cyclic"}, int64_t{1} << 31, 1); }),
              HasSubstr("order cyclic keeps a table of all examples; 2147483648 are more than the "
                        "2147483647 that it takes: use random or sequential"));
  const std::vector<int32_t> lengths(3, 2147483647);
  const Ids documents{0, 1, 2};
  const auto refusal = [&](int64_t seq_length, int64_t samples) {
    return message_of<ConfigError>([&] {
      megatron_order(lengths, documents, {.seq_length = seq_length, .samples = samples, .seed = 1});
    });
  };
  EXPECT_THAT(refusal(1, 0), HasSubstr("6442450940 samples are more than the 2147483647"));
  EXPECT_THAT(refusal(1024, int64_t{1} << 62), HasSubstr("order: random"));
  const Ids many(1000, 0);
  EXPECT_THAT(message_of<ConfigError>([&] {
                megatron_order(std::vector<int32_t>{1}, many,
                               {.seq_length = 999, .samples = 2147483647, .seed = 1});
              }),
              HasSubstr("documents"));
}

}  // namespace
}  // namespace trireme::data
