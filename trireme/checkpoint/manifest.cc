#include "trireme/checkpoint/manifest.h"

#include <algorithm>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/hash.h"
#include "trireme/layout/stage_manager.h"

namespace trireme::checkpoint {
namespace {

using base::FormatError;
using base::Json;

constexpr const char* kFormat = "trireme checkpoint";
constexpr int kVersion = 1;

Json to_json(const layout::ModelDescription& description) {
  Json layers = Json::array(), parameters = Json::array();
  for (const auto& layer : description.layers) {
    layers.push_back(
        {{"name", layer.name}, {"block", layer.block}, {"parameters", layer.parameters}});
  }
  for (const auto& spec : description.parameters) {
    parameters.push_back({{"name", spec.name},
                          {"shape", spec.shape},
                          {"dtype", base::name_of(spec.dtype)},
                          {"buffer", spec.kind == layout::ParamKind::buffer},
                          {"stages", spec.layout.stages},
                          {"dp", to_string(spec.layout.dp)},
                          {"tp", to_string(spec.layout.tp)},
                          {"fused", spec.fused},
                          {"granularity", spec.granularity}});
    if (spec.layout.data_rank) parameters.back()["data_rank"] = *spec.layout.data_rank;
  }
  return {{"layers", layers},
          {"parameters", parameters},
          {"layers_per_stage", description.layers_per_stage}};
}

layout::ModelDescription description_from(const Json& json) {
  layout::ModelDescription description;
  for (const Json& layer : json.at("layers")) {
    description.layers.push_back(
        {.name = layer.at("name"),
         .block = layer.at("block"),
         .parameters = layer.at("parameters").get<std::vector<std::string>>()});
  }
  for (const Json& entry : json.at("parameters")) {
    layout::ParamSpec spec;
    spec.name = entry.at("name");
    spec.shape = entry.at("shape").get<layout::Shape>();
    spec.dtype = base::dtype_of(entry.at("dtype").get<std::string>());
    spec.kind =
        entry.at("buffer").get<bool>() ? layout::ParamKind::buffer : layout::ParamKind::parameter;
    spec.layout.stages = entry.at("stages").get<std::vector<int>>();
    spec.layout.dp = layout::sbp_from_string(entry.at("dp"));
    spec.layout.tp = layout::sbp_from_string(entry.at("tp"));
    spec.fused = entry.at("fused").get<std::vector<int64_t>>();
    spec.granularity = entry.at("granularity");
    if (entry.contains("data_rank")) spec.layout.data_rank = entry["data_rank"].get<int>();
    description.parameters.push_back(std::move(spec));
  }
  description.layers_per_stage = json.at("layers_per_stage").get<std::vector<int>>();
  return description;
}

}  // namespace

std::string to_text(const Manifest& manifest) {
  layout::Coord sizes = manifest.mesh.sizes();
  Json checksums = Json::object();
  for (const auto& [file, tensors] : manifest.checksums) {
    for (const auto& [name, hash] : tensors) checksums[file][name] = base::hash_to_text(hash);
  }
  Json companions = Json::object();
  for (const auto& [file, hash] : manifest.companions) companions[file] = base::hash_to_text(hash);
  Json json = {{"format", kFormat},
               {"version", kVersion},
               {"kind", manifest.merged ? "merged" : "split"},
               {"step", manifest.step},
               {"consumed_samples", manifest.consumed_samples},
               {"seed", manifest.seed},
               {"layout", {{"pp", sizes.pp}, {"dp", sizes.dp}, {"tp", sizes.tp}}},
               {"optimizer", manifest.optimizer},
               {"config", manifest.config},
               {"model_config", manifest.model_config},
               {"metrics", manifest.metrics},
               {"data", manifest.data},
               {"model", to_json(manifest.description)},
               {"index_checksum", base::hash_to_text(manifest.index_checksum)},
               {"companions", std::move(companions)},
               {"checksums", std::move(checksums)}};
  json["checksum"] = base::hash_to_text(base::hash_text(json.dump()));
  return json.dump(1) + "\n";
}

Manifest read_manifest(const std::string& path) {
  Json json = base::read_json(path);
  if (!json.is_object() || json.value("format", Json()) != kFormat) {
    throw FormatError(fmt::format("{}: not the manifest of a trireme checkpoint", path));
  }
  if (json.value("version", Json()) != kVersion) {
    throw FormatError(
        fmt::format("{}: version {} of the checkpoint format; this program reads version {}", path,
                    json.value("version", Json()).dump(), kVersion));
  }
  try {
    std::string checksum = json.at("checksum");
    json.erase("checksum");
    if (base::hash_to_text(base::hash_text(json.dump())) != checksum) {
      throw FormatError(
          "its content does not match its checksum: the file was damaged or edited; use another "
          "checkpoint");
    }
    Manifest manifest;
    manifest.merged = json.at("kind").get<std::string>() == "merged";
    manifest.step = json.at("step");
    manifest.consumed_samples = json.at("consumed_samples");
    manifest.seed = json.at("seed");
    const Json& sizes = json.at("layout");
    manifest.mesh =
        layout::Mesh({.pp = sizes.at("pp"), .dp = sizes.at("dp"), .tp = sizes.at("tp")});
    manifest.optimizer = json.at("optimizer");
    manifest.config = json.at("config");
    manifest.model_config = json.at("model_config");
    manifest.metrics = json.value("metrics", Json());
    manifest.data = json.value("data", Json());
    manifest.description = description_from(json.at("model"));
    manifest.index_checksum = base::hash_from_text(json.at("index_checksum"));
    const Json companions = json.value("companions", Json::object());
    for (const auto& [file, hash] : companions.items()) manifest.companions[file] = base::hash_from_text(hash);
    for (const auto& [file, tensors] : json.at("checksums").items()) {
      for (const auto& [name, hash] : tensors.items())
        manifest.checksums[file][name] = base::hash_from_text(hash);
    }
    return manifest;
  } catch (const nlohmann::json::exception& e) {
    throw FormatError(fmt::format("{}: {}", path, base::message_of(e)));
  } catch (const base::Error& e) {
    throw FormatError(fmt::format("{}: {}", path, e.what()));
  }
}

layout::ModelDescription retarget(const layout::ModelDescription& description,
                                  const layout::Mesh& mesh,
                                  const std::vector<int>& blocks_per_stage) {
  int stages = mesh.size(layout::Axis::pp);
  int blocks =
      static_cast<int>(std::ranges::count_if(description.layers, &layout::LayerDescription::block));
  std::vector<int> last_block = layout::accumulate_layers(
      blocks_per_stage.empty() ? layout::distribute_layers(blocks, stages)
                               : layout::distribute_layers(blocks, stages, blocks_per_stage));
  std::map<std::string, std::set<int>> stages_of;
  layout::ModelDescription out = description;
  out.layers_per_stage.assign(static_cast<size_t>(stages), 0);
  int seen = 0, stage = 0;
  for (const auto& layer : description.layers) {
    if (layer.block) {
      while (seen >= last_block[stage + 1]) ++stage;
      ++seen;
    } else if (seen == blocks) {
      stage = stages - 1;
    }
    if (layer.block) ++out.layers_per_stage[stage];
    for (const std::string& name : layer.parameters) stages_of[name].insert(stage);
  }
  for (layout::ParamSpec& spec : out.parameters) {
    const std::set<int>& holders = stages_of[spec.name];
    base::check(!holders.empty(), "no layer holds {}", spec.name);
    spec.layout.stages.assign(holders.begin(), holders.end());
    spec.layout.data_rank.reset();  // of a mesh with other data ranks
  }
  return out;
}

}  // namespace trireme::checkpoint
