#include "trireme/formats/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/formats/weight_map.h"

namespace trireme::formats {
namespace {

using base::DType;
using testing::HasSubstr;

class Safetensors : public testing::Test {
 protected:
  std::string put(const std::string& content, const std::string& name = "f.safetensors") {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << content;
    return folder_ + "/" + name;
  }
  /// A file with the given header text and data bytes.
  std::string file(const std::string& header, size_t data_bytes) {
    uint64_t length = header.size();
    return put(std::string(reinterpret_cast<char*>(&length), 8) + header +
               std::string(data_bytes, '\0'));
  }
  /// What the reader says to a file.
  std::string refusal(const std::string& path) {
    try {
      SafetensorsFile reader(path);
    } catch (const base::FormatError& e) {
      EXPECT_THAT(e.what(), HasSubstr(path));
      return e.what();
    }
    return "accepted";
  }
  std::string write(const std::vector<TensorEntry>& entries,
                    const std::string& name = "w.safetensors") {
    SafetensorsWriter writer(folder_ + "/" + name, entries, {{"format", "pt"}});
    for (const TensorEntry& e : writer.order()) {
      std::vector<std::byte> bytes(checked_bytes(e.shape, e.dtype, ""), std::byte{7});
      writer.write(e.name, bytes);
    }
    writer.close();
    return folder_ + "/" + name;
  }
  test::TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
};

TEST_F(Safetensors, EqualsThePythonPackageByteForByte) {
  SafetensorsWriter writer(folder_ + "/w",
                           {{"b", DType::i64, {3}},
                            {"a", DType::bf16, {2, 2}},
                            {"c.d", DType::f32, {}},
                            {"z", DType::f32, {0, 4}},
                            {"m", DType::boolean, {2}},
                            {"h", DType::f16, {1}},
                            {"q", DType::f64, {1}}},
                           {{"format", "pt"}});
  int64_t b[] = {0, 1, 2};
  uint16_t a[] = {0x3f80, 0x3f80, 0x3f80, 0x3f80}, h[] = {0x3c00};
  float c[] = {1.5};
  double q[] = {1};
  bool m[] = {true, false};
  writer.write("b", std::as_bytes(std::span(b)));
  writer.write("q", std::as_bytes(std::span(q)));
  writer.write("c.d", std::as_bytes(std::span(c)));
  writer.write("a", std::as_bytes(std::span(a).first(1)));
  writer.write("a", std::as_bytes(std::span(a).subspan(1)));
  writer.write("h", std::as_bytes(std::span(h)));
  writer.write("m", std::as_bytes(std::span(m)));
  writer.close();
  std::string header =  // from safetensors.torch.save
      R"({"__metadata__":{"format":"pt"},)"
      R"("b":{"dtype":"I64","shape":[3],"data_offsets":[0,24]},)"
      R"("q":{"dtype":"F64","shape":[1],"data_offsets":[24,32]},)"
      R"("c.d":{"dtype":"F32","shape":[],"data_offsets":[32,36]},)"
      R"("z":{"dtype":"F32","shape":[0,4],"data_offsets":[36,36]},)"
      R"("a":{"dtype":"BF16","shape":[2,2],"data_offsets":[36,44]},)"
      R"("h":{"dtype":"F16","shape":[1],"data_offsets":[44,46]},)"
      R"("m":{"dtype":"BOOL","shape":[2],"data_offsets":[46,48]}} )";
  std::string content = base::read_file(folder_ + "/w");
  EXPECT_EQ(content.substr(8, header.size()), header);
  uint64_t length;
  std::memcpy(&length, content.data(), 8);
  EXPECT_EQ(length, header.size());
  std::string hex;
  for (unsigned char byte : content.substr(8 + header.size())) hex += fmt::format("{:02x}", byte);
  EXPECT_EQ(hex,
            "000000000000000001000000000000000200000000000000000000000000f03f0000c03f"
            "803f803f803f803f003c0100");

  SafetensorsFile reader(folder_ + "/w");
  EXPECT_EQ(reader.tensors().size(), 7u);
  EXPECT_EQ(reader.at("a").shape, (layout::Shape{2, 2}));
  EXPECT_EQ(reader.at("c.d").shape, layout::Shape{});
  EXPECT_EQ(std::memcmp(reader.at("b").bytes.data(), b, sizeof b), 0);
  EXPECT_EQ(reader.metadata().at("format"), "pt");
  EXPECT_THROW(reader.at("none"), base::FormatError);
}

TEST_F(Safetensors, RefusesMalformedHeaders) {
  EXPECT_THAT(refusal(put("")), HasSubstr("at least 8"));
  EXPECT_THAT(refusal(put("abc")), HasSubstr("at least 8"));
  EXPECT_THAT(refusal(put(std::string(8, '\xff'))), HasSubstr("header is said to have"));
  EXPECT_THAT(refusal(file("", 0)), HasSubstr("does not start"));
  EXPECT_THAT(refusal(file("[]", 0)), HasSubstr("does not start"));
  EXPECT_THAT(refusal(file(" {}", 0)), HasSubstr("does not start"));
  EXPECT_THAT(refusal(file("{\"a\":", 0)), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal(file("{\"\xff\":1}", 0)), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal(file(R"({"a":3})", 0)), HasSubstr("not an object"));
  EXPECT_THAT(refusal(file(R"({"__metadata__":{"a":1}})", 0)), HasSubstr("not a string"));
  std::string a = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  EXPECT_EQ(refusal(file(a + "}", 4)), "accepted");
  EXPECT_EQ(refusal(file(a + "}   ", 4)), "accepted");
  EXPECT_THAT(refusal(file(a + "}", 3)), HasSubstr("do not lie in"));
  EXPECT_THAT(refusal(file(a + "}", 5)), HasSubstr("1 bytes follow"));
  EXPECT_THAT(refusal(file(a + R"(,"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8)),
              HasSubstr("twice"));
  EXPECT_THAT(refusal(file(a + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})", 6)),
              HasSubstr("overlap"));
  EXPECT_THAT(refusal(file(a + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4)),
              HasSubstr("overlap"));
  EXPECT_THAT(refusal(file(a + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})", 12)),
              HasSubstr("hole"));
}

TEST_F(Safetensors, RefusesMalformedEntries) {
  auto entry = [&](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return refusal(file(fmt::format(R"({{"a":{{"dtype":{},"shape":{},"data_offsets":{}}}}})", dtype,
                                    shape, offsets),
                        8));
  };
  EXPECT_EQ(entry("\"F32\"", "[2]", "[0,8]"), "accepted");
  EXPECT_THAT(entry("\"F33\"", "[2]", "[0,8]"), HasSubstr("\"F33\" is not supported"));
  EXPECT_THAT(entry("\"F8_E4M3\"", "[8]", "[0,8]"), HasSubstr("not supported"));
  EXPECT_THAT(entry("7", "[2]", "[0,8]"), HasSubstr("not a string"));
  EXPECT_THAT(entry("\"F32\"", "[3]", "[0,8]"), HasSubstr("takes 12"));
  EXPECT_THAT(entry("\"F32\"", "2", "[0,8]"), HasSubstr("not a list"));
  EXPECT_THAT(entry("\"F32\"", "[-2]", "[0,8]"), HasSubstr("non-negative"));
  EXPECT_THAT(entry("\"F32\"", "[2.0]", "[0,8]"), HasSubstr("non-negative"));
  EXPECT_THAT(entry("\"F32\"", "[18446744073709551615]", "[0,8]"), HasSubstr("non-negative"));
  EXPECT_THAT(entry("\"F32\"", "[4294967296,4294967296]", "[0,0]"), HasSubstr("no valid size"));
  EXPECT_THAT(entry("\"F32\"", "[2]", "[0]"), HasSubstr("do not lie"));
  EXPECT_THAT(entry("\"F32\"", "[2]", "[8,0]"), HasSubstr("do not lie"));
  EXPECT_THAT(entry("\"F32\"", "[2]", "[0,9223372036854775807]"), HasSubstr("do not lie"));
}

TEST_F(Safetensors, DamagedFilesAreRefusedOrReadWithinBounds) {
  std::string path =
      write({{"a", DType::f32, {3, 5}}, {"b", DType::i64, {2}}, {"c", DType::u8, {9}}});
  std::string good = base::read_file(path);
  std::mt19937 random(1);
  int refused = 0;
  for (int i = 0; i < 600; ++i) {
    std::string bad = good;
    for (int k = random() % 3; k >= 0; --k) {
      size_t at = random() % bad.size();
      switch (random() % 4) {
        case 0:
          bad[at] = static_cast<char>(random());
          break;
        case 1:
          bad.resize(at + 1);
          break;
        case 2:
          bad.insert(at, 1, "{}[],:\"0987-e"[random() % 13]);
          break;
        case 3:
          bad.erase(at, 1 + random() % 8);
          break;
      }
      if (bad.empty()) bad = " ";
    }
    try {
      SafetensorsFile reader(put(bad));
      unsigned sum = 0;
      for (const auto& [name, tensor] : reader.tensors()) {
        for (std::byte byte : tensor.bytes) sum += static_cast<unsigned>(byte);
      }
      EXPECT_LE(sum, 255 * bad.size());
    } catch (const base::FormatError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 200);
}

TEST_F(Safetensors, AnUnfinishedFileIsRemoved) {
  {
    SafetensorsWriter writer(folder_ + "/w", {{"a", DType::f32, {2}}, {"b", DType::f32, {2}}}, {});
    std::vector<std::byte> bytes(8);
    EXPECT_THROW(writer.write("b", bytes), base::InternalError);
    writer.write("a", bytes);
    EXPECT_THROW(writer.write("a", bytes), base::InternalError);
    EXPECT_THROW(writer.close(), base::InternalError);
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/w"));
  EXPECT_THROW(
      SafetensorsWriter(folder_ + "/w", {{"a", DType::f32, {}}, {"a", DType::f32, {}}}, {}),
      base::InternalError);
  EXPECT_THROW(SafetensorsWriter(folder_ + "/none/w", {}, {}), base::IoError);
}

TEST_F(Safetensors, FindsTensorsInShards) {
  EXPECT_TRUE(locate_tensors(folder_).empty());
  write({{"a", DType::f32, {3}}, {"b", DType::f32, {}}}, "model-00001-of-00002.safetensors");
  write({{"c", DType::f32, {3}}}, "model-00002-of-00002.safetensors");
  auto index = [&](const std::string& map) {
    put(R"({"weight_map":)" + map + "}", "model.safetensors.index.json");
  };
  index(
      R"({"a":"model-00001-of-00002.safetensors","b":"model-00001-of-00002.safetensors","c":"model-00002-of-00002.safetensors"})");
  EXPECT_EQ(locate_tensors(folder_).at("c"), folder_ + "/model-00002-of-00002.safetensors");
  EXPECT_EQ(locate_tensors(folder_).size(), 3u);
  index(R"({"a":"model-00001-of-00002.safetensors","c":"model-00002-of-00002.safetensors"})");
  EXPECT_THROW(locate_tensors(folder_), base::FormatError);  // b is in the file, not in the index
  index(R"({"d":"model-00002-of-00002.safetensors","c":"model-00002-of-00002.safetensors"})");
  EXPECT_THROW(locate_tensors(folder_), base::FormatError);  // d is in the index, not in the file
  index(R"({"c":"../model-00002-of-00002.safetensors"})");
  EXPECT_THROW(locate_tensors(folder_), base::FormatError);
  index(R"({"c":"model-00003-of-00002.safetensors"})");
  EXPECT_THROW(locate_tensors(folder_), base::FormatError);
  index("[]");
  EXPECT_THROW(locate_tensors(folder_), base::FormatError);
  write({{"x", DType::f32, {3}}}, "model.safetensors");
  EXPECT_EQ(locate_tensors(folder_).size(), 1u);  // a single file comes first
}

}  // namespace
}  // namespace trireme::formats
