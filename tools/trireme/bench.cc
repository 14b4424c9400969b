#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tools/trireme/subcommands.h"
#include "trireme/base/error.h"

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;

// The project's folder, from the place of the program in it (build/PRESET/bin).
fs::path project_folder(const fs::path& program) {
  for (auto folder = program.parent_path(); folder.has_relative_path(); folder = folder.parent_path())
    if (fs::exists(folder / "bench/run.py")) return folder;
  throw base::ConfigError(fmt::format(
      "the benchmarks are part of the source tree: no bench/run.py above {}; run the program of a build folder",
      program.string()));
}

// The peers are Python packages, so the benchmarks are driven from Python.
void run_benchmarks(const std::vector<std::string>& arguments) {
  fs::path program = fs::canonical("/proc/self/exe");
  fs::path folder = project_folder(program);
  fs::path python = folder / ".venv/bin/python";
  if (!fs::exists(python)) python = "python3";
  std::vector<std::string> words = {python, folder / "bench/run.py"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  setenv("TRIREME_BIN", program.parent_path().c_str(), 1);
  execvp(argv[0], argv.data());
  throw base::IoError(words[0], errno, "start");
}

}  // namespace

void add_bench(CLI::App& program) {
  auto* bench = program.add_subcommand("bench", "measure trireme against its peers (bench/)");
  bench->set_help_flag();  // the script's own help names the benchmarks
  bench->allow_extras();
  bench->callback([bench] { run_benchmarks(bench->remaining()); });
}

}  // namespace trireme::tools
