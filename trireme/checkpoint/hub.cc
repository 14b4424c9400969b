#include "trireme/checkpoint/hub.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <regex>

#include "trireme/base/error.h"
#include "trireme/base/io.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string cache() {
  if (const std::string folder = variable("HF_HUB_CACHE"); !folder.empty()) return folder;
  if (const std::string folder = variable("HF_HOME"); !folder.empty()) return folder + "/hub";
  const std::string root = variable("XDG_CACHE_HOME");
  return (root.empty() ? variable("HOME") + "/.cache" : root) + "/huggingface/hub";
}

std::string without_spaces(std::string text) {
  std::erase_if(text, [](unsigned char c) { return std::isspace(c) != 0; });
  return text;
}

}  // namespace

std::string cached_model(const std::string& name) {
  static const std::regex kName(R"(([\w.-]+/)?[\w.-]+(@[\w./-]+)?)");
  if (!std::regex_match(name, kName) || name.starts_with(".")) {
    throw base::ConfigError(fmt::format(
        "{}: there is no such folder; expected a checkpoint, a run's folder, a Hugging Face model folder, or the name "
        "of a downloaded model such as org/model",
        name));
  }
  const size_t at = name.find('@');
  const std::string model = name.substr(0, at), revision = at == std::string::npos ? "main" : name.substr(at + 1);
  std::string folder = model;
  if (const size_t slash = folder.find('/'); slash != std::string::npos) folder.replace(slash, 1, "--");
  const std::string root = fmt::format("{}/models--{}", cache(), folder), ref = root + "/refs/" + revision;
  const std::string commit = fs::is_regular_file(ref) ? without_spaces(base::read_file(ref)) : revision;
  const std::string snapshot = root + "/snapshots/" + commit;
  if (fs::is_directory(snapshot)) return snapshot;
  throw base::ConfigError(
      fmt::format("{}: there is no such folder, and no downloaded model of that name in {}; give a folder, or get the "
                  "model with: hf download {}{}",
                  name, cache(), model, at == std::string::npos ? "" : " --revision " + revision));
}

}  // namespace trireme::checkpoint
