#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>

#include "tests/data/data_support.h"
#include "trireme/data/image_files.h"

namespace trireme::data {
namespace {

using base::ConfigError;
using base::FormatError;
using base::Json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Values = std::vector<double>;

std::string big_endian(std::initializer_list<uint32_t> words) {
  std::string bytes;
  for (uint32_t word : words)
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(word >> shift & 0xFF);
  return bytes;
}

class Images : public ::testing::Test {
 protected:
  std::string file(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return folder_ / name;
  }
  /// `count` pictures of 4 x 5 whose pixels count up, labels 0, 1, 2, 0, ...
  std::string mnist(int count = 6) {
    std::string pixels, labels;
    for (int i = 0; i < 20 * count; ++i) pixels += static_cast<char>(i);
    for (int i = 0; i < count; ++i) labels += static_cast<char>(i % 3);
    file("t-labels-idx1-ubyte", big_endian({0x801, uint32_t(count)}) + labels);
    return file("t-images-idx3-ubyte", big_endian({0x803, uint32_t(count), 4, 5}) + pixels);
  }
  std::shared_ptr<const Dataset> open(const std::string& path, const Json& options,
                                      bool shuffle = false) {
    return dataset_types().get("images")(path, options, {.seed = 3, .shuffle = shuffle});
  }
  TemporaryFolder folder_;
};

TEST_F(Images, OfMnist) {
  auto dataset = open(mnist(), {{"mean", {0.5}}, {"std", {0.25}}});
  ASSERT_EQ(dataset->size(), 6);
  EXPECT_EQ(dataset->fields()[0], (FieldSpec{"pixel_values", {1, 4, 5}, base::DType::f32}));
  EXPECT_EQ(dataset->fields()[1], FieldSpec{"labels"});
  auto f = read_fields(*dataset, 4);
  EXPECT_EQ(f["labels"], (Values{1}));
  for (int i = 0; i < 20; ++i)
    EXPECT_FLOAT_EQ(f["pixel_values"][i], ((80 + i) / 255.0 - 0.5) / 0.25);
  EXPECT_THAT(dataset->description(), HasSubstr("6 images of 3 classes, 1 x 4 x 5"));
  auto rgb = open(mnist(), {{"channels", 3}, {"size", 8}});
  EXPECT_EQ(rgb->fields()[0].shape, (std::vector<int64_t>{3, 8, 8}));
  read_fields(*rgb, 0);
}

TEST_F(Images, HaveCaptions) {
  const auto images = mnist();
  file("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\ncat\ndog\n");
  const std::string captions = file("captions.txt", "a cat\na dog\n\ncat\na cat a dog a cat\ndog\n");
  const SampleOptions run{.seq_length = 5, .shuffle = false, .tokenizer = folder_ / "vocab.txt"};
  const auto open_with = [&](const Json& options) { return dataset_types().get("images")(images, options, run); };
  auto dataset = open_with({{"caption_file", captions}});
  EXPECT_EQ(dataset->fields()[2], (FieldSpec{"input_ids", {5}}));
  auto f = read_fields(*dataset, 1);
  EXPECT_EQ(f["input_ids"], (Values{2, 5, 7, 3, 0}));
  EXPECT_EQ(f["attention_mask"], (Values{1, 1, 1, 1, 0}));
  EXPECT_EQ(f["labels"], (Values{1}));
  EXPECT_EQ(read_fields(*open_with({{"caption_file", captions}, {"eos", 4}}), 4)["input_ids"].back(), 4);
  file("captions.txt", "a cat\na dog\n");
  EXPECT_THAT(message_of<FormatError>([&] { open_with({{"caption_file", captions}}); }), HasSubstr("2 lines for 6 images"));
  EXPECT_THAT(message_of<ConfigError>([&] { open(images, {{"caption_file", captions}}); }), HasSubstr("tokenizer"));
}

TEST_F(Images, OfDamagedMnistAreRefused) {
  const auto path = mnist();
  const std::string whole = base::read_file(path);
  for (size_t size : {size_t{0}, size_t{3}, size_t{15}, whole.size() - 1}) {
    file("t-images-idx3-ubyte", whole.substr(0, size));
    EXPECT_THROW(open(path, {}), FormatError) << size;
  }
  file("t-images-idx3-ubyte", big_endian({0x803, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF}));
  EXPECT_THAT(message_of<FormatError>([&] { open(path, {}); }),
              HasSubstr("beyond what a file can hold"));
  mnist();
  file("t-labels-idx1-ubyte", big_endian({0x801, 5}) + "abcde");
  EXPECT_THAT(message_of<FormatError>([&] { open(path, {}); }), HasSubstr("5 labels for 6 images"));
}

TEST_F(Images, OfCifar) {
  std::string ten;
  for (int i = 0; i < 2; ++i) {
    ten += static_cast<char>(7 + i);
    for (int c = 0; c < 3; ++c) ten += std::string(1024, static_cast<char>(10 * i + c));
  }
  file("data_batch_1.bin", ten);
  file("data_batch_2.bin", ten);
  auto dataset = open(folder_ / "data_batch_*.bin", {{"std", {1.0 / 255}}});
  ASSERT_EQ(dataset->size(), 4);
  auto f = read_fields(*dataset, 3);
  EXPECT_EQ(f["labels"], (Values{8}));
  EXPECT_NEAR(f["pixel_values"][0], 10, 1e-4);
  EXPECT_NEAR(f["pixel_values"][3071], 12, 1e-4);
  std::string hundred = std::string("\x01\x63", 2) + std::string(3072, 5);
  auto fine = open(file("train100.bin", hundred), {});
  EXPECT_EQ(read_fields(*fine, 0)["labels"], (Values{99}));
  EXPECT_THAT(message_of<FormatError>([&] { open(file("x.bin", "abc"), {}); }),
              HasSubstr("3 bytes; expected a multiple of 3073"));
}

std::string npy(const std::string& type, const std::string& shape, const std::string& data,
                const char* order = "False") {
  std::string header =
      fmt::format("{{'descr': '{}', 'fortran_order': {}, 'shape': ({}), }}", type, order, shape);
  header += std::string(118 - header.size() - 1, ' ') + "\n";
  return std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header + data;
}

TEST_F(Images, OfNumpysArrays) {
  const auto images = file("x.npy", npy("|u1", "2, 2, 2, 3", std::string(24, 'a')));
  const auto labels = file("y.npy", npy("<i2", "2,", std::string("\x01\x00\x00\x00", 4)));
  auto dataset = open(images, {{"label_file", labels}});
  EXPECT_EQ(dataset->fields()[0].shape, (std::vector<int64_t>{3, 2, 2}));
  EXPECT_EQ(read_fields(*dataset, 0)["labels"], (Values{1}));
  EXPECT_NEAR(read_fields(*dataset, 0)["pixel_values"][0], 97 / 255.0, 1e-6);
  EXPECT_THAT(message_of<ConfigError>([&] { open(images, {}); }), HasSubstr("label_file"));
  const auto refused = [&](const std::string& bytes) {
    return message_of<FormatError>([&] { open(file("z.npy", bytes), {{"label_file", labels}}); });
  };
  EXPECT_THAT(refused(npy("|u1", "2, 2, 2, 3", std::string(23, 'a'))),
              HasSubstr("its shape takes 152"));
  EXPECT_THAT(refused(npy("|u1", "2, 2, 2, 3", std::string(24, 'a'), "True")),
              HasSubstr("Fortran"));
  EXPECT_THAT(refused(npy("<f4", "2, 2, 2", std::string(32, 'a'))), HasSubstr("expected u1"));
  EXPECT_THAT(refused(npy("|u1", "99999999999, 99999999999", "")), HasSubstr("is none"));
  EXPECT_THAT(refused("no array"), HasSubstr("expected a .npy file"));
}

TEST_F(Images, ChangesAtRandomDependOnSeedAndIndexAlone) {
  const Json options = {{"size", 4},
                        {"random_crop", true},
                        {"padding", 2},
                        {"horizontal_flip", 0.5},
                        {"vertical_flip", 0.5},
                        {"brightness", 0.3},
                        {"contrast", 0.3},
                        {"blur", 0.5},
                        {"solarize", 0.3}};
  const auto path = mnist();
  auto a = open(path, options, true), b = open(path, options, true);
  std::set<Values> seen;
  for (int64_t i = 0; i < 36; ++i) {
    EXPECT_EQ(read_fields(*a, 35 - i), read_fields(*b, 35 - i));
    seen.insert(read_fields(*a, i)["pixel_values"]);
  }
  EXPECT_GT(seen.size(), 30u);
  auto still = open(path, options, false);
  EXPECT_EQ(read_fields(*still, 0), read_fields(*still, 6)) << "evaluation changes nothing";
  auto parts = open(path, {{"size", 4}, {"random_resized_crop", true}}, true);
  EXPECT_NE(read_fields(*parts, 0), read_fields(*parts, 6));
}

TEST_F(Images, ViewsOfOneImageAreChangedEachOnItsOwn) {
  const Json options = {{"views", 2}, {"size", 4}, {"random_crop", true}, {"padding", 2}};
  auto dataset = open(mnist(), options, true);
  EXPECT_EQ(dataset->fields()[0], (FieldSpec{"pixel_values", {2, 1, 4, 4}, base::DType::f32}));
  int apart = 0;
  for (int64_t i = 0; i < 20; ++i) {
    const Values both = read_fields(*dataset, i)["pixel_values"];
    ASSERT_EQ(both.size(), 32u);
    apart += !std::equal(both.begin(), both.begin() + 16, both.begin() + 16);
  }
  EXPECT_GT(apart, 10);
  EXPECT_THROW(open(mnist(), {{"views", 2}, {"mixup", 1.0}}, true), base::ConfigError);
}

TEST_F(Images, MixedOnesHaveSharesForLabels) {
  for (const char* kind : {"mixup", "cutmix"}) {
    auto dataset = open(mnist(), {{kind, 1.0}, {"classes", 4}}, true);
    EXPECT_EQ(dataset->fields()[1], (FieldSpec{"labels", {4}, base::DType::f32}));
    int64_t mixed = 0;
    for (int64_t i = 0; i < 30; ++i) {
      auto f = read_fields(*dataset, i);
      EXPECT_NEAR(std::accumulate(f["labels"].begin(), f["labels"].end(), 0.0), 1, 1e-6);
      EXPECT_EQ(f["labels"][3], 0);
      mixed += f["labels"][0] > 0.01 && f["labels"][0] < 0.99;
      for (double v : f["pixel_values"]) EXPECT_TRUE(v >= 0 && v <= 1);
    }
    EXPECT_GT(mixed, 3) << kind;
    EXPECT_EQ(open(mnist(), {{kind, 1.0}}, false)->fields()[1], FieldSpec{"labels"})
        << "evaluation mixes nothing";
  }
}

TEST_F(Images, RefuseWhatDoesNotFit) {
  const auto path = mnist();
  EXPECT_THAT(message_of<ConfigError>([&] {
                open(path, {{"classes", 2}});
              }),
              HasSubstr("image 2 is of class 2; expected 0 to 1"));
  EXPECT_THAT(message_of<ConfigError>([&] {
                open(path, {{"mean", {0.1, 0.2, 0.3}}});
              }),
              HasSubstr("3 numbers for 1 channels"));
  EXPECT_THAT(message_of<ConfigError>([&] {
                open(path, {{"interpolation", "lanczos"}});
              }),
              HasSubstr("expected one of nearest, bilinear, bicubic"));
  std::filesystem::create_directories(folder_ / "classes/cat");
  EXPECT_THAT(message_of<ConfigError>([&] { open(folder_ / "classes", {}); }),
              HasSubstr("a folder stands for a class"));
  std::ofstream(folder_ / "classes/cat/a.png") << "no picture";
  EXPECT_THAT(message_of<FormatError>([&] { open(folder_ / "classes", {}); }),
              AllOf(HasSubstr("a.png"), HasSubstr("neither a PNG nor a JPEG")));
  std::ofstream(folder_ / "classes/cat/a.png", std::ios::binary)
      << std::string("\x89PNG\r\n\x1a\n", 8) << "xxxx";
  EXPECT_THAT(message_of<FormatError>([&] { open(folder_ / "classes", {}); }),
              HasSubstr("damaged PNG file"));
}

}  // namespace
}  // namespace trireme::data
