// One target under libFuzzer:  fuzz_index [-seeds=FOLDER, writes the good files and ends] [flags]
// CORPUS

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "tests/fuzz/targets.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"

namespace {

const trireme::fuzz::Target& target() {
  for (const auto& known : trireme::fuzz::targets())
    if (std::string_view(known.name) == TRIREME_FUZZ_TARGET) return known;
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  for (int i = 1; i < *argc; ++i) {
    const std::string_view word = (*argv)[i];
    if (!word.starts_with("-seeds=")) continue;
    const std::filesystem::path folder(word.substr(7));
    std::filesystem::create_directories(folder);
    const trireme::test::TemporaryFolder work;
    int number = 0;
    for (const std::string& seed : target().seeds(work.path().string()))
      std::ofstream(folder / std::to_string(number++), std::ios::binary) << seed;
    std::exit(0);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const trireme::test::TemporaryFolder folder;
  try {
    target().run({reinterpret_cast<const char*>(data), size}, folder.path().string());
  } catch (const trireme::base::Error& e) {
    if (e.exit_code() != 2) throw;
  }
  return 0;
}
