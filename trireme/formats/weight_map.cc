#include "trireme/formats/weight_map.h"

#include <filesystem>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/json.h"
#include "trireme/formats/safetensors.h"
#include "trireme/formats/torch_zip.h"

namespace trireme::formats {
namespace {

namespace fs = std::filesystem;
using base::FormatError;
using base::Json;

std::set<std::string> names_in(const std::string& path) {
  if (path.ends_with(".bin")) return TorchZipFile(path).names();
  std::set<std::string> names;
  const SafetensorsFile file(path);
  for (const auto& [name, tensor] : file.tensors()) names.insert(name);
  return names;
}

}  // namespace

std::map<std::string, std::string> locate_tensors(const std::string& folder,
                                                  const std::string& stem,
                                                  const std::string& extension) {
  std::map<std::string, std::string> located;
  const std::string single = fmt::format("{}/{}.{}", folder, stem, extension),
                    index_path = single + ".index.json";
  if (fs::exists(single)) {
    for (const std::string& name : names_in(single)) located[name] = single;
    return located;
  }
  if (!fs::exists(index_path)) return located;
  Json index = base::read_json(index_path);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    throw FormatError(fmt::format("{}: there is no object \"weight_map\"", index_path));
  }
  std::map<std::string, std::set<std::string>> shards;
  for (const auto& [name, file] : index["weight_map"].items()) {
    std::string shard = file.is_string() ? file.get<std::string>() : "";
    if (shard.empty() || shard != fs::path(shard).filename().string() || shard[0] == '.') {
      throw FormatError(
          fmt::format("{}: tensor \"{}\" lies in {}, which is no file name of the folder",
                      index_path, name, file.dump()));
    }
    shards[shard].insert(name);
    located[name] = folder + "/" + shard;
  }
  for (const auto& [shard, names] : shards) {
    const std::string path = folder + "/" + shard;
    if (!fs::exists(path)) {
      throw FormatError(
          fmt::format("{}: there is no such file, but {} says that {} tensors lie in it; copy "
                      "all {} files of the model",
                      path, index_path, names.size(), shards.size()));
    }
    const std::set<std::string> held = names_in(path);
    for (const std::string& name : names) {
      if (!held.contains(name))
        throw FormatError(fmt::format("{}: there is no tensor \"{}\" among its {}, but {} lists it",
                                      path, name, held.size(), index_path));
    }
    for (const std::string& name : held) {
      if (!names.contains(name)) {
        throw FormatError(fmt::format("{}: tensor \"{}\" is not listed for it in {}", path, name,
                                      index_path));
      }
    }
  }
  return located;
}

}  // namespace trireme::formats
