#include "trireme/formats/torch_zip.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/formats/pickle.h"

namespace trireme::formats {
namespace {

using base::DType;
using testing::HasSubstr;

class TorchZip : public testing::Test {
 protected:
  void write(const std::vector<TensorEntry>& entries) {
    TorchZipWriter writer(path_, entries);
    unsigned char next = 0;
    for (const TensorEntry& entry : entries) {
      std::vector<std::byte> bytes(
          static_cast<size_t>(checked_bytes(entry.shape, entry.dtype, "")));
      for (std::byte& byte : bytes) byte = std::byte{next++};
      writer.write(entry.name, bytes);
    }
    writer.close();
  }
  test::TemporaryFolder folder_;
  const std::string path_ = folder_ / "file";
};

TEST_F(TorchZip, ReadsWhatItWrites) {
  write({{"a", DType::f32, {2, 3}},
         {"b.c", DType::i64, {}},
         {"d", DType::bf16, {0, 300, 70000}},
         {"e", DType::u8, {300}}});
  TorchZipFile file(path_);
  ASSERT_EQ(file.names().size(), 4u);
  EXPECT_EQ(file.at("a").shape, (layout::Shape{2, 3}));
  EXPECT_EQ(file.at("d").shape, (layout::Shape{0, 300, 70000}));
  EXPECT_EQ(file.at("b.c").bytes[0], std::byte{24});
  EXPECT_EQ(file.at("e").bytes[299], std::byte{(32 + 299) & 255});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(file.at("e").bytes.data()) % 64, 0u);
  EXPECT_THROW(file.at("x"), base::FormatError);
}

TEST_F(TorchZip, AnUnfinishedFileIsRemoved) {
  {
    TorchZipWriter writer(path_, {{"a", DType::f32, {2}}});
    std::vector<std::byte> bytes(4);
    EXPECT_THROW(writer.write("b", bytes), base::InternalError);
    EXPECT_THROW(writer.write("a", bytes), base::InternalError);
    EXPECT_THROW(writer.close(), base::InternalError);
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(TorchZip, DamagedFilesAreRefusedOrReadWithinBounds) {
  write({{"a", DType::f32, {2, 3}}, {"b", DType::i64, {4}}});
  std::string good = base::read_file(path_);
  std::mt19937 random(1);
  int refused = 0;
  for (int i = 0; i < 500; ++i) {
    std::string bad = good;
    size_t at = random() % bad.size();
    switch (random() % 3) {
      case 0:
        bad[at] = static_cast<char>(random());
        break;
      case 1:
        bad.resize(at);
        break;
      case 2:
        bad.erase(at, 1 + random() % 9);
        break;
    }
    std::ofstream(path_, std::ios::binary) << bad;
    try {
      TorchZipFile file(path_);
      for (const std::string& name : file.names()) EXPECT_LE(file.at(name).bytes.size(), good.size());
    } catch (const base::FormatError& e) {
      EXPECT_THAT(e.what(), HasSubstr(path_));
      ++refused;
    }
  }
  EXPECT_GT(refused, 150);
}

std::string refusal(std::string_view pickle) {
  try {
    read_state_dict(pickle, "p");
  } catch (const base::FormatError& e) {
    return e.what();
  }
  return "accepted";
}

TEST(Pickle, NothingIsImported) {
  EXPECT_EQ(refusal("}."), "accepted");
  EXPECT_THAT(refusal("cposix\nsystem\n(X\2\0\0\0lstR."), HasSubstr("posix.system"));
  EXPECT_THAT(refusal("cbuiltins\neval\n."), HasSubstr("builtins.eval"));
  EXPECT_THAT(refusal("\x8c\2os\x8c\6system\x93."), HasSubstr("os.system"));
  EXPECT_THAT(refusal("ctorch\nload\n."), HasSubstr("torch.load"));
  EXPECT_THAT(refusal("ctorch.storage\nFloatStorage\n."), HasSubstr("makes no tensor"));
  EXPECT_THAT(refusal("ios\nsystem\n."), HasSubstr("operation (0x69)"));   // INST
  EXPECT_THAT(refusal("(cposix\nsystem\no."), HasSubstr("posix.system"));  // OBJ
}

TEST(Pickle, RefusesNonsense) {
  for (std::string_view bad : {"",
                               "}",
                               ".",
                               "K.",
                               "K",
                               "N.",
                               "(.",
                               "t.",
                               "R.",
                               "}s.",
                               "}K\1s.",
                               "}(K\1u.",
                               "}K\1K\2s.",
                               "h\1.",
                               "q\1.",
                               "Q.",
                               "a.",
                               "]K\1K\2s.",
                               "X\xff\xff\xff\xff.",
                               "\x8a\x09",
                               "c\n",
                               "cx",
                               "b.",
                               ")R.",
                               "ccollections\nOrderedDict\nK\1R.",
                               "(K\1tQ.",
                               "\x80\x09}."}) {
    EXPECT_NE(refusal(bad), "accepted") << bad;
  }
  // Nesting without end costs neither stack nor time.
  std::string deep = "]";
  for (int i = 0; i < 1000000; ++i) deep += "\x85";
  EXPECT_NE(refusal(deep + "."), "accepted");
  std::mt19937 random(2);
  std::string good = write_state_dict({{"a", DType::f32, {2, 3}}, {"b", DType::i64, {4}}});
  EXPECT_EQ(refusal(good), "accepted");
  for (int i = 0; i < 2000; ++i) {
    std::string bad = good;
    for (int k = random() % 3; k >= 0; --k)
      bad[random() % bad.size()] = static_cast<char>(random());
    refusal(bad);
  }
}

TEST(Pickle, ObjectsAreMapsOfTheirAttributesAndNothingRuns) {
  using std::string_literals::operator""s;
  const std::string object = "cargparse\nNamespace\n)\x81}(X\4\0\0\0sizeK\7X\4\0\0\0nameX\1\0\0\0xub"s,
                    call = "cposix\nsystem\n(X\2\0\0\0lstR"s,
                    real = "G\x3f\xe0\0\0\0\0\0\0"s;
  const auto tree = [](const std::string& pickle) { return read_tree(pickle, "p"); };
  const PickledTree found =
      tree("}(X\4\0\0\0args"s + object + "X\1\0\0\0c"s + call + "X\1\0\0\0r"s + real + "K\3K\4u."s);
  EXPECT_EQ(found.values["args.size"], 7);
  EXPECT_EQ(found.values["args.name"], "x");
  EXPECT_EQ(found.values["r"], 0.5);
  EXPECT_EQ(found.values["3"], 4);
  EXPECT_TRUE(found.tensors.empty());
  const std::string state = write_state_dict({{"a.b", DType::f32, {2, 3}}});
  EXPECT_EQ(tree("}X\5\0\0\0model"s + state.substr(2, state.size() - 3) + "s."s).tensors.at("model.a.b").shape,
            (layout::Shape{2, 3}));
  EXPECT_THROW(tree("}q\0X\1\0\0\0ah\0s."s), base::FormatError);  // a map in itself
  std::mt19937 random(3);
  const std::string good = "}(X\4\0\0\0args"s + object + "X\1\0\0\0c"s + call + "u."s;
  for (int i = 0; i < 2000; ++i) {
    std::string bad = good;
    for (int k = random() % 3; k >= 0; --k) bad[random() % bad.size()] = static_cast<char>(random());
    try {
      tree(bad);
    } catch (const base::FormatError&) {
    }
  }
}

}  // namespace
}  // namespace trireme::formats
