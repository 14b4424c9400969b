// The fuzz targets on good files, on the small corpus beside this file (made by other libraries, or
// what libFuzzer found) and on all of them with a little random damage.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>

#include "tests/fuzz/targets.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/io.h"

namespace trireme::fuzz {
namespace {

class Damage : public ::testing::TestWithParam<Target> {};

std::string damaged(std::string bytes, std::mt19937& random) {
  for (int k = 1 + static_cast<int>(random() % 4); k > 0 && !bytes.empty(); --k) {
    const size_t at = random() % bytes.size();
    switch (random() % 6) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
        break;
      case 2:
        bytes.erase(at, random() % 16);
        break;
      case 3:
        bytes.insert(at, bytes.substr(random() % bytes.size(), random() % 16));
        break;
      case 4:
        bytes.resize(at);
        break;
      default:  // a number at the edge of what a field holds
        for (size_t i = at; i < std::min(bytes.size(), at + 8); ++i)
          bytes[i] = static_cast<char>(random() % 3 == 0 ? 0x7F : 0xFF);
    }
  }
  return bytes;
}

/// The files of tests/fuzz/corpus/NAME.
std::vector<std::string> corpus(const std::string& name) {
  std::vector<std::string> paths, files;
  for (const auto& entry : std::filesystem::directory_iterator(TRIREME_FUZZ_CORPUS "/" + name))
    paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  for (const std::string& path : paths) files.push_back(base::read_file(path));
  return files;
}

TEST_P(Damage, IsRefusedOrServedButNeverCrashes) {
  const Target& target = GetParam();
  test::TemporaryFolder folder;
  std::mt19937 random(11);
  auto seeds = target.seeds(folder.path().string());
  for (const std::string& seed : seeds)
    EXPECT_NO_THROW(target.run(seed, folder.path().string())) << target.name;
  const auto given = corpus(target.name);
  EXPECT_GE(given.size(), 2u);
  for (const std::string& bytes : given) {
    try {
      target.run(bytes, folder.path().string());
    } catch (const base::Error& e) {
      EXPECT_EQ(e.exit_code(), 2) << target.name << ": " << e.what();
    }
  }
  seeds.insert(seeds.end(), given.begin(), given.end());
  int refused = 0;
  for (int round = 0; round < 300; ++round) {
    const std::string bytes = damaged(seeds[random() % seeds.size()], random);
    try {
      target.run(bytes, folder.path().string());
    } catch (const base::Error& e) {
      ++refused;
      EXPECT_EQ(e.exit_code(), 2) << target.name << ": " << e.what();
    }
  }
  if (std::string_view(target.name) == "index" || std::string_view(target.name) == "safetensors") {
    EXPECT_GT(refused, 150);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, Damage, ::testing::ValuesIn(targets()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace trireme::fuzz
