#include <gmock/gmock.h>
#include <sys/stat.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <vector>

#include "tests/data/data_support.h"
#include "trireme/base/io.h"
#include "trireme/data/identity.h"
#include "trireme/data/indexed.h"

namespace trireme::data {
namespace {

using base::DType;
using base::FormatError;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Ids = std::vector<int64_t>;

void write(const std::string& prefix, DType dtype, const std::vector<Ids>& documents,
           IndexFormat format = IndexFormat::megatron) {
  IndexedWriter writer(prefix, dtype, format);
  for (const Ids& ids : documents) {
    writer.add_sequence(std::span<const int64_t>(ids));
    writer.end_document();
  }
  writer.finish();
}

Ids document(const IndexedDataset& data, int64_t d) {
  Ids ids(data.document_begin(d + 1) - data.document_begin(d));
  data.read(data.document_begin(d), std::ssize(ids), ids.data());
  return ids;
}

std::string hex(const std::string& bytes) {
  std::string text;
  for (unsigned char c : bytes) text += fmt::format("{:02x}", c);
  return text;
}

// The bytes that Megatron-LM's and OSLO's builders write for these documents.
TEST(Indexed, WritesTheReferencesBytes) {
  TemporaryFolder folder;
  write(folder / "d", DType::i32, {{1, 2, 3}, {4, 5}, {6, 7, 8, 9}});
  EXPECT_EQ(hex(base::read_file(folder / "d.bin")),
            "010000000200000003000000040000000500000006000000070000000800000009000000");
  EXPECT_EQ(hex(base::read_file(folder / "d.idx")),
            "4d4d4944494458000001000000000000000403000000000000000400000000000000030000000200000004"
            "0000000000000000"
            "0000000c000000000000001400000000000000000000000000000001000000000000000200000000000000"
            "0300000000000000");
  EXPECT_EQ(folder.entries(), 2);
}

// The bytes that OSLO's builder writes for its modes lazy and cached: item sizes, ids at offsets in
// elements, and the documents.
TEST(Indexed, WritesTheBytesOfOslosLazyAndCachedModes) {
  TemporaryFolder folder;
  write(folder / "d", DType::i32, {{1, 2, 3}, {4, 5}, {6, 7, 8, 9}}, IndexFormat::torchnet);
  EXPECT_EQ(hex(base::read_file(folder / "d.bin")),
            "010000000200000003000000040000000500000006000000070000000800000009000000");
  const auto words = [](std::initializer_list<int> numbers) {
    std::string text;
    for (int n : numbers) text += fmt::format("{:02x}00000000000000", n);
    return text;
  };
  EXPECT_EQ(hex(base::read_file(folder / "d.idx")), "544e544944580000" + words({1, 4, 4, 3, 3, 4}) +
                                                        words({0, 1, 2, 3}) + words({0, 3, 5, 9}) +
                                                        words({3, 2, 4}) + words({0, 1, 2, 3}));
}

TEST(Indexed, EveryModeReadsEitherFormatAlike) {
  TemporaryFolder folder;
  const std::vector<Ids> documents{{1, 2, 3}, {4, 5}, {}, {6, 7, 8, 9}};
  for (DType dtype : {DType::u16, DType::i32, DType::i64, DType::u8}) {
    write(folder / "m", dtype, documents);
    write(folder / "t", dtype, documents, IndexFormat::torchnet);
    for (const char* name : {"m", "t"}) {
      for (Access access : {Access::mmap, Access::lazy, Access::cached}) {
        IndexedDataset data(folder / name, access);
        EXPECT_EQ(data.format(), name[0] == 'm' ? IndexFormat::megatron : IndexFormat::torchnet);
        ASSERT_EQ(data.documents(), 4);
        EXPECT_EQ(data.sequences(), 4);
        EXPECT_EQ(data.tokens(), 9);
        for (int64_t d = 0; d < 4; ++d) EXPECT_EQ(document(data, d), documents[d]);
        EXPECT_EQ(data.id_range(), (std::pair<int64_t, int64_t>{1, 9}));
        EXPECT_EQ(data.document_of(5), 3);
      }
      EXPECT_EQ(IndexedDataset(folder / name, Access::lazy).fingerprint(),
                IndexedDataset(folder / name).fingerprint());
    }
  }
  EXPECT_THAT(message_of<base::ConfigError>([] { access_of("memory"); }),
              HasSubstr("expected mmap, lazy or cached"));
}

// Reading on in a map of a file that was cut off would end the process; of one that was replaced,
// it would mix two datasets.
TEST(Indexed, AFileThatChangesWhileItIsReadIsNoticed) {
  TemporaryFolder folder;
  const Ids many(100000, 7);
  for (Access access : {Access::mmap, Access::lazy}) {
    for (const std::string ending : {".bin", ".idx"}) {
      const auto said = [&](const std::function<void()>& change) {
        write(folder / "d", DType::i32, {many});
        IndexedDataset data(folder / "d", access);
        std::vector<int64_t> ids(10);
        data.read(99990, 10, ids.data());
        change();
        return message_of<FormatError>([&] { data.read(99990, 10, ids.data()); });
      };
      EXPECT_THAT(
          said([&] { std::filesystem::resize_file(folder / ("d" + ending), 16); }),
          AllOf(HasSubstr("d" + ending), HasSubstr("changed its size while it was being read")));
      EXPECT_THAT(said([&] {
                    write(folder / "d", DType::i32, {{1, 2}});
                  }),
                  HasSubstr("was replaced or removed"));
      EXPECT_THAT(said([&] {
                    std::filesystem::last_write_time(
                        folder / ("d" + ending),
                        std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
                  }),
                  HasSubstr("was written to"));
    }
  }
  write(folder / "d", DType::i32, {{1, 2}});
  IndexedDataset held(folder / "d", Access::cached);
  std::filesystem::resize_file(folder / "d.bin", 0);
  EXPECT_EQ(document(held, 0), (Ids{1, 2})) << "what is held is not touched";
}

TEST(Indexed, MergingTakesTheSmallestTypeThatHoldsAll) {
  EXPECT_EQ(common_dtype(DType::u16, DType::u16), DType::u16);
  EXPECT_EQ(common_dtype(DType::u8, DType::u16), DType::u16);
  EXPECT_EQ(common_dtype(DType::u16, DType::i16), DType::i32);
  EXPECT_EQ(common_dtype(DType::u8, DType::i8), DType::i16);
  EXPECT_EQ(common_dtype(DType::u16, DType::i64), DType::i64);
}

TEST(Indexed, EveryTypeComesBack) {
  const std::vector<std::pair<DType, std::vector<Ids>>> cases = {
      {DType::u8, {{0, 255}, {7}}},
      {DType::i8, {{-128, 127}}},
      {DType::i16, {{-32768, 32767}, {}, {1}}},
      {DType::u16, {{0, 65535, 65499}}},
      {DType::i32, {{2147483647, -2147483647 - 1}, {5, 6}}},
      {DType::i64, {{int64_t{1} << 62, -1}}},
  };
  for (const auto& [dtype, documents] : cases) {
    TemporaryFolder folder;
    write(folder / "d", dtype, documents);
    for (const char* name : {"d", "d.idx", "d.bin"}) {
      IndexedDataset data(folder / name);
      EXPECT_EQ(data.dtype(), dtype);
      ASSERT_EQ(data.documents(), std::ssize(documents));
      for (int64_t d = 0; d < data.documents(); ++d) EXPECT_EQ(document(data, d), documents[d]);
    }
  }
}

TEST(Indexed, DocumentsOfSeveralSequencesAndEmptyOnes) {
  TemporaryFolder folder;
  const std::vector<int32_t> a{1, 2}, b{3}, c{4, 5, 6};
  {
    IndexedWriter writer(folder / "d", DType::u16);
    writer.add_sequence(a);
    writer.add_sequence(b);
    writer.end_document();
    writer.end_document();
    writer.add_sequence(c);
    writer.end_document();
    writer.finish();
    EXPECT_EQ(writer.documents(), 3);
    EXPECT_EQ(writer.tokens(), 6);
  }
  IndexedDataset data(folder / "d");
  EXPECT_EQ(data.sequences(), 3);
  EXPECT_EQ(data.documents(), 3);
  EXPECT_EQ(document(data, 0), (Ids{1, 2, 3}));
  EXPECT_EQ(document(data, 1), Ids{});
  EXPECT_EQ(document(data, 2), (Ids{4, 5, 6}));
  EXPECT_EQ(data.length(1), 1);
  EXPECT_EQ(data.begin(3), 6);
  EXPECT_EQ(data.document_of(0), 0);
  EXPECT_EQ(data.document_of(2), 0);
  EXPECT_EQ(data.document_of(3), 2);
  std::vector<std::byte> scratch;
  EXPECT_EQ(static_cast<const void*>(data.bytes(4, 1, scratch).data()),
            data.bytes(0, 6, scratch).data() + 8);
  EXPECT_TRUE(scratch.empty()) << "read in place";

  // Parts of datasets, of one type and of another, one after the other.
  IndexedWriter merged(folder / "m", DType::i32);
  merged.append(data, 1, 3);
  merged.append(data, 0, 1);
  merged.finish();
  IndexedDataset again(folder / "m");
  EXPECT_EQ(again.documents(), 3);
  EXPECT_EQ(again.sequences(), 3);
  EXPECT_EQ(document(again, 1), (Ids{4, 5, 6}));
  EXPECT_EQ(document(again, 2), (Ids{1, 2, 3}));
}

// Blocks of several sizes, from several parts, kept in their type and widened.
TEST(Indexed, AppendsTheSameBytesOnAnyNumberOfThreads) {
  TemporaryFolder folder;
  Ids ids(3'500'000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i * 7919 % 65536);
  write(folder / "large", DType::u16, {ids, {}, {1, 2}});
  write(folder / "small", DType::u16, {{65535}, Ids(1 << 20, 3)});
  for (DType dtype : {DType::u16, DType::i32}) {
    for (int threads : {1, 2, 7}) {
      IndexedWriter writer(folder / fmt::format("m{}", threads), dtype);
      writer.add_sequence(std::span<const int64_t>(ids).first(5));
      writer.end_document();
      int64_t copied = 0;
      for (const char* part : {"large", "small"}) {
        const IndexedDataset source(folder / part, Access::lazy);
        writer.append(source, 0, source.documents(), threads, [&](int64_t more) { copied += more; });
      }
      writer.add_sequence(std::span<const int64_t>(ids).first(9));
      writer.end_document();
      writer.finish();
      EXPECT_EQ(copied, writer.tokens() - 14);
    }
    const IndexedDataset merged(folder / "m1");
    EXPECT_EQ(merged.documents(), 7);
    EXPECT_EQ(document(merged, 1), ids);
    EXPECT_EQ(document(merged, 4), (Ids{65535}));
    EXPECT_EQ(document(merged, 6), (Ids(ids.begin(), ids.begin() + 9)));
    for (const char* other : {"m2", "m7"}) {
      for (const char* ending : {".idx", ".bin"})
        EXPECT_TRUE(base::read_file(folder / "m1" + ending) == base::read_file(folder / other + ending))
            << other << ending;
    }
  }
}

TEST(Indexed, AnAppendThatFailsLeavesNothing) {
  TemporaryFolder folder;
  write(folder / "d", DType::i32, {Ids(2'000'000, 5), {1, 70000}});
  {
    const IndexedDataset source(folder / "d", Access::lazy);
    IndexedWriter narrow(folder / "m", DType::u16);
    EXPECT_THAT(message_of<base::ConfigError>([&] { narrow.append(source, 0, 2, 4); }),
                HasSubstr("token id 70000 (token 2000001 of " + (folder / "d") + ") does not fit uint16"));
    std::filesystem::resize_file(folder / "d.bin", 4'000'000);
    IndexedWriter cut(folder / "m2", DType::i32);
    EXPECT_THAT(message_of<base::FormatError>([&] { cut.append(source, 0, 2, 4); }),
                HasSubstr("changed its size while it was being read"));
  }
  EXPECT_EQ(folder.entries(), 2);
}

TEST(Indexed, NoDocumentsAtAll) {
  TemporaryFolder folder;
  write(folder / "d", DType::u16, {});
  IndexedDataset data(folder / "d");
  EXPECT_EQ(data.documents(), 0);
  EXPECT_EQ(data.tokens(), 0);
}

TEST(Indexed, TypeOfAVocabulary) {
  EXPECT_EQ(token_dtype(50257), DType::u16);
  EXPECT_EQ(token_dtype(65499), DType::u16);
  EXPECT_EQ(token_dtype(65500), DType::i32);
}

TEST(Indexed, AnUnfinishedOrFailedWriteLeavesTheOldFiles) {
  TemporaryFolder folder;
  write(folder / "d", DType::u16, {{1, 2, 3}});
  const std::string index = base::read_file(folder / "d.idx"),
                    bin = base::read_file(folder / "d.bin");
  {
    IndexedWriter writer(folder / "d", DType::u16);
    const Ids good(100000, 5), bad{1, 65536};
    writer.add_sequence(std::span<const int64_t>(good));
    EXPECT_THAT(
        message_of<base::ConfigError>([&] { writer.add_sequence(std::span<const int64_t>(bad)); }),
        HasSubstr(
            "token id 65536 (token 1 of sequence 1) does not fit uint16; expected 0 to 65535"));
  }
  EXPECT_EQ(folder.entries(), 2);
  EXPECT_EQ(base::read_file(folder / "d.idx"), index);
  EXPECT_EQ(base::read_file(folder / "d.bin"), bin);
  EXPECT_THROW(IndexedWriter(folder / "absent/d", DType::u16), base::IoError);
  EXPECT_THROW(IndexedWriter(folder / "d", DType::f32), base::ConfigError);
  EXPECT_THROW(IndexedDataset(folder / "absent"), base::ConfigError);

  EXPECT_EQ(folder.entries(), 2);
}

TEST(Indexed, RenamingOntoAFolderLeavesNothingNew) {
  TemporaryFolder folder;
  std::filesystem::create_directory(folder / "d.bin");
  base::write_file_atomic(folder / "d.bin/x", "keeps the folder from being replaced");
  EXPECT_THROW(write(folder / "d", DType::u16, {{1}}), base::IoError);
  EXPECT_EQ(folder.entries(), 1);
}

TEST(Indexed, AMissingDatasetIsNamedWithWhatMakesIt) {
  TemporaryFolder folder;
  auto said = [&] {
    return message_of<base::ConfigError>([&] { IndexedDataset data(folder / "d"); });
  };
  EXPECT_THAT(said(), AllOf(HasSubstr("there is no file " + folder / "d.idx"),
                            HasSubstr("trireme preprocess")));
  write(folder / "d_train", DType::u16, {{1}});
  EXPECT_THAT(said(), HasSubstr("There is " + folder / "d_train" + ": name that"));
}

TEST(Indexed, FingerprintsTellDatasetsApart) {
  TemporaryFolder folder;
  auto fingerprint = [&](const std::string& name, DType dtype, const std::vector<Ids>& documents) {
    write(folder / name, dtype, documents);
    return IndexedDataset(folder / name).fingerprint();
  };
  const uint64_t first = fingerprint("a", DType::u16, {{1, 2, 3}, {4}});
  EXPECT_EQ(fingerprint("moved", DType::u16, {{1, 2, 3}, {4}}), first);
  EXPECT_NE(fingerprint("ids", DType::u16, {{1, 2, 3}, {5}}), first);
  EXPECT_NE(fingerprint("bounds", DType::u16, {{1, 2}, {3, 4}}), first);
}

TEST(Identity, SaysWhatChanged) {
  Identity was{.seq_length = 8, .sources = {{"a", 0.5, 3, 100, 7}, {"b", 0.5, 4, 200, 8}}};
  EXPECT_NO_THROW(refuse_change(identity_from(to_json(was)), was, "ckpt"));
  auto said = [&](const std::function<void(Identity&)>& change) {
    Identity now = was;
    change(now);
    return message_of<base::ConfigError>([&] { refuse_change(was, now, "ckpt"); });
  };
  EXPECT_THAT(said([](Identity& i) { i.seq_length = 16; }),
              HasSubstr("data.seq_length is 16, the checkpoint was trained with 8"));
  EXPECT_THAT(said([](Identity& i) { i.sources.pop_back(); }),
              HasSubstr("data.train has 1 datasets"));
  EXPECT_THAT(said([](Identity& i) { i.sources[1].tokens = 201; }),
              AllOf(HasSubstr("data.train[1] (b)"), HasSubstr("201")));
  EXPECT_THAT(said([](Identity& i) { i.sources[0].fingerprint = 9; }),
              AllOf(HasSubstr("other documents"), HasSubstr("ckpt")));
  EXPECT_THAT(said([](Identity& i) { i.sources[0].weight = 0.25; }), HasSubstr("weight 0.25"));
  Identity moved = was;
  moved.sources[0].path = "elsewhere/a";
  EXPECT_NO_THROW(refuse_change(was, moved, "ckpt"));
  EXPECT_THROW(identity_from(base::Json{{"seq_length", 1}}), base::FormatError);
}

TEST(Indexed, AFullDiskIsAnIoErrorAndLeavesNothing) {
  // Writes to /dev/full fail with ENOSPC, as they do on a full disk.
  TemporaryFolder folder;
  std::filesystem::create_symlink("/dev/full", folder / "d.bin.tmp");
  EXPECT_THAT(message_of<base::IoError>([&] { write(folder / "d", DType::u16, {Ids(1000, 1)}); }),
              HasSubstr("No space left on device"));
  EXPECT_EQ(folder.entries(), 0);
}

/// The same for the TNTIDX format: byte 56 starts its arrays, four words, four, three and four.
class DamagedTorchnet : public ::testing::Test {
 protected:
  DamagedTorchnet() {
    write(folder_ / "d", DType::u16, {{1, 2}, {3}, {4, 5}}, IndexFormat::torchnet);
    whole_ = index_ = base::read_file(folder_ / "d.idx");
  }
  std::string error(size_t at, uint64_t value) {
    index_ = whole_;
    std::memcpy(index_.data() + at, &value, sizeof value);
    return error();
  }
  std::string error() {
    std::ofstream(folder_ / "d.idx", std::ios::binary) << index_;
    std::string message = message_of<FormatError>([&] { IndexedDataset data(folder_ / "d"); });
    EXPECT_THAT(message, HasSubstr(folder_.path().string()));
    return message;
  }
  TemporaryFolder folder_;
  std::string whole_, index_;
};

TEST_F(DamagedTorchnet, Header) {
  EXPECT_THAT(error(8, 2), HasSubstr("(byte 8): version 2"));
  EXPECT_THAT(error(16, 7), HasSubstr("(byte 16): dtype code 7"));
  EXPECT_THAT(error(24, 4), HasSubstr("(byte 24): elements of 4 bytes; expected 2"));
  for (uint64_t hostile : {uint64_t{5}, uint64_t{1} << 61, ~uint64_t{0}, uint64_t{1} << 63})
    for (size_t at : {32, 40, 48}) EXPECT_THAT(error(at, hostile), HasSubstr("d.idx (byte ")) << at;
  EXPECT_THAT(error(48, 0), HasSubstr("0 document entries"));
}

TEST_F(DamagedTorchnet, Arrays) {
  EXPECT_THAT(error(64, 2), HasSubstr("(byte 64): the sizes of sequence 1 start at 2"));
  EXPECT_THAT(error(96, 9),
              HasSubstr("(byte 96): sequence 1 starts at token 9 of the .bin file; expected 2"));
  EXPECT_THAT(error(112, 6), HasSubstr("the last sequence ends at token 6; expected 5"));
  EXPECT_THAT(error(120, ~uint64_t{0}), HasSubstr("sequence 0 has -1 tokens"));
  EXPECT_THAT(error(120, uint64_t{1} << 62), HasSubstr("(byte 120): sequence 0 has"));
  EXPECT_THAT(error(136, (uint64_t{1} << 63) - 1), HasSubstr("no more than a file can hold"));
  EXPECT_THAT(error(144, 1), HasSubstr("document boundary 0 is sequence 1"));
  EXPECT_THAT(error(168, 2), HasSubstr("the last document ends at sequence 2; expected 3"));
}

TEST_F(DamagedTorchnet, TruncatedAnywhereAndOtherProducers) {
  for (size_t size = 0; size < whole_.size(); ++size) {
    index_ = whole_.substr(0, size);
    EXPECT_THAT(error(), HasSubstr("d.idx (byte ")) << size;
  }
  index_ = whole_.substr(0, 48) + whole_.substr(56, 8 * 11);
  EXPECT_THAT(error(), HasSubstr("fairseq"));
  for (size_t at = 0; at < whole_.size(); ++at) {
    for (int flip : {1, 0x80}) {
      index_ = whole_;
      index_[at] = static_cast<char>(index_[at] ^ flip);
      std::ofstream(folder_ / "d.idx", std::ios::binary) << index_;
      const bool inner_boundary = at >= 152 && at < 168;  // one number there is as good as another
      try {
        IndexedDataset data(folder_ / "d");
        EXPECT_TRUE(inner_boundary) << at;
      } catch (const FormatError&) {
      }
    }
  }
}

/// A good dataset of 3 documents (5 tokens of u16) to damage: index bytes 34, 46 and 70 start its
/// arrays.
class Damaged : public ::testing::Test {
 protected:
  Damaged() {
    write(folder_ / "d", DType::u16, {{1, 2}, {3}, {4, 5}});
    index_ = base::read_file(folder_ / "d.idx");
  }
  template <class T>
  void put(size_t at, T value) {
    std::memcpy(index_.data() + at, &value, sizeof value);
  }
  void store() { std::ofstream(folder_ / "d.idx", std::ios::binary) << index_; }
  /// The error of opening the damaged index; it must name the file.
  std::string error() {
    store();
    std::string message = message_of<FormatError>([&] { IndexedDataset data(folder_ / "d"); });
    EXPECT_THAT(message, HasSubstr(folder_.path().string()));
    return message;
  }
  TemporaryFolder folder_;
  std::string index_;
};

TEST_F(Damaged, Magic) {
  index_[3] = 'x';
  EXPECT_THAT(error(), ::testing::AllOf(HasSubstr("d.idx (byte 0)"), HasSubstr("4d 4d 49 78"),
                                        HasSubstr("MMIDIDX")));
  index_ = "TNTIDX" + index_.substr(6);
  EXPECT_THAT(error(), HasSubstr("TNTIDX"));
  index_ = "";
  EXPECT_THAT(error(), HasSubstr("no index"));
}

TEST_F(Damaged, Version) {
  put<uint64_t>(9, 2);
  EXPECT_THAT(error(), HasSubstr("(byte 9): version 2; expected 1"));
}

TEST_F(Damaged, Code) {
  for (int code : {0, 6, 7, 9, 255}) {
    put<uint8_t>(17, static_cast<uint8_t>(code));
    EXPECT_THAT(error(), HasSubstr(fmt::format("(byte 17): dtype code {}", code)));
  }
}

TEST_F(Damaged, TypeOfAnotherWidth) {
  put<uint8_t>(17, 4);
  EXPECT_THAT(error(), HasSubstr("sequence 1 starts at byte 4 of the .bin file; expected 8"));
}

TEST_F(Damaged, Counts) {
  const std::string whole = index_;
  for (uint64_t count : {uint64_t{4}, uint64_t{1} << 62, ~uint64_t{0}, (~uint64_t{0}) / 12 + 2}) {
    index_ = whole;
    put(18, count);
    EXPECT_THAT(error(), HasSubstr("d.idx (byte "));
    put<uint64_t>(18, 3);
    put(26, count + 1);
    EXPECT_THAT(error(), HasSubstr("(byte 26)"));
  }
  index_ = whole;
  put<uint64_t>(26, 0);
  EXPECT_THAT(error(), HasSubstr("0 document entries; expected at least 1"));
}

TEST_F(Damaged, TruncatedAnywhere) {
  const std::string whole = index_;
  for (size_t size = 0; size < whole.size(); ++size) {
    index_ = whole.substr(0, size);
    EXPECT_THAT(error(), HasSubstr("d.idx (byte ")) << size;
  }
  index_ = whole + '\0';
  EXPECT_THAT(error(),
              HasSubstr("the file has 103 bytes; 3 sequences and 4 document entries take 102"));
}

TEST_F(Damaged, VariantsOfOtherProducers) {
  const std::string whole = index_;
  index_ = whole + std::string(3, '\0');
  EXPECT_THAT(error(), HasSubstr("multimodal"));
  index_ = whole.substr(0, 26) + whole.substr(34, 36);
  EXPECT_THAT(error(), HasSubstr("fairseq"));
}

TEST_F(Damaged, Lengths) {
  put<int32_t>(38, -1);
  EXPECT_THAT(error(), HasSubstr("(byte 38): sequence 1 has -1 tokens"));
  put<int32_t>(38, 2);
  EXPECT_THAT(error(),
              HasSubstr("(byte 62): sequence 2 starts at byte 6 of the .bin file; expected 8"));
}

TEST_F(Damaged, Pointers) {
  put<int64_t>(54, 5);
  EXPECT_THAT(error(),
              HasSubstr("(byte 54): sequence 1 starts at byte 5 of the .bin file; expected 4"));
}

TEST_F(Damaged, Boundaries) {
  put<int64_t>(70, 1);
  EXPECT_THAT(error(), HasSubstr("(byte 70): document boundary 0 is sequence 1; expected 0"));
  put<int64_t>(70, 0);
  put<int64_t>(86, 0);
  EXPECT_THAT(error(), HasSubstr("(byte 86): document boundary 2 is sequence 0; expected 1 to 3"));
  put<int64_t>(86, 4);
  EXPECT_THAT(error(), HasSubstr("(byte 86): document boundary 2 is sequence 4; expected 1 to 3"));
  put<int64_t>(86, 2);
  put<int64_t>(94, 2);
  EXPECT_THAT(error(), HasSubstr("(byte 94): the last document ends at sequence 2; expected 3"));
}

TEST_F(Damaged, Bin) {
  base::write_file_atomic(folder_ / "d.bin", "123456789");
  EXPECT_THAT(
      error(),
      HasSubstr(
          "d.bin (byte 9): the file has 9 bytes; its index speaks of 10 (5 tokens of uint16)"));
  base::write_file_atomic(folder_ / "d.bin", "");
  EXPECT_THAT(error(), HasSubstr("has 0 bytes"));
  base::write_file_atomic(folder_ / "d.bin", "0123456789ab");
  EXPECT_THAT(error(), HasSubstr("has 12 bytes"));
}

// Whatever single byte of the index changes, opening either fails with a FormatError or gives a
// readable dataset.
TEST_F(Damaged, AnyByte) {
  const std::string whole = index_;
  for (size_t at = 0; at < whole.size(); ++at) {
    for (int flip : {1, 0x80, 0xff}) {
      index_ = whole;
      index_[at] = static_cast<char>(index_[at] ^ flip);
      store();
      try {
        IndexedDataset data(folder_ / "d");
        for (int64_t d = 0; d < data.documents(); ++d) document(data, d);
      } catch (const FormatError&) {
      }
    }
  }
}

}  // namespace
}  // namespace trireme::data
