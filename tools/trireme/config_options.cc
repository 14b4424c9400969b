#include "tools/trireme/config_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/trireme/subcommands.h"
#include "trireme/base/plugin.h"
#include "trireme/config/deepspeed.h"
#include "trireme/config/load.h"

namespace trireme::tools {
namespace {

std::string shell_quoted(const std::string& word) {
  if (word.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=,:+@%") ==
      std::string::npos)
    return word;
  std::string quoted = "'";
  for (char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace

void ConfigOptions::add_to(CLI::App& command) {
  command.add_option("--config", path, "YAML file of the run (docs/config.md lists its keys)")->required();
  command
      .add_flag_callback(
          "--help-config",
          [] {
            fmt::print("{}", config::reference());
            throw CLI::Success();
          },
          "print every configuration key with its type, default and meaning")
      ->trigger_on_parse();
  command.add_option("--deepspeed", deepspeed, "a DeepSpeed configuration whose keys win over the file's");
  command.add_option("overrides", overrides, "key=value settings, for example train.train_iter=50");
}

config::RunConfig ConfigOptions::load() const {
  config::DeepSpeed given;
  if (!deepspeed.empty()) given = config::read_deepspeed(deepspeed);
  if (!given.without_counterpart.empty())
    fmt::print(stderr, "{}: without counterpart here, no effect: {}\n", deepspeed, fmt::join(given.without_counterpart, ", "));
  std::vector<std::string> settings = std::move(given.settings);
  settings.insert(settings.end(), overrides.begin(), overrides.end());
  config::RunConfig config = config::load(path, settings);
  base::load_plugins(config.plugins);
  return config;
}

std::string ConfigOptions::command(const std::string& subcommand, int ranks) const {
  std::string line = fmt::format("trireme {} --config {}", subcommand, shell_quoted(path));
  if (!deepspeed.empty()) line += fmt::format(" --deepspeed {}", shell_quoted(deepspeed));
  if (ranks > 0) line += fmt::format(" --ranks {}", ranks);
  for (const std::string& word : overrides) line += " " + shell_quoted(word);
  return line;
}

void exit_with(int code) {
  if (code != 0) throw Exit{code};
}

}  // namespace trireme::tools
