#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cstring>
#include <fstream>
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

void write(const std::string& prefix, DType dtype, const std::vector<Ids>& documents) {
  IndexedWriter writer(prefix, dtype);
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
  EXPECT_EQ(static_cast<const void*>(data.bytes(4, 1).data()), data.bytes(0, 6).data() + 8);

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
