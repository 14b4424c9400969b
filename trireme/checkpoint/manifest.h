#pragma once
// Manifest: what a checkpoint says of itself in trireme.json, beside its tensors: where the run
// stood, the layout that wrote it, the model's parameters and the checksum of every stored tensor
// and file. It is written last: a folder without it is an unfinished checkpoint.

#include <cstdint>
#include <map>
#include <string>

#include "trireme/base/json.h"
#include "trireme/layout/model_description.h"

namespace trireme::checkpoint {

inline constexpr const char* kManifestFile = "trireme.json";
inline constexpr const char* kIndexFile = "index.json";

struct Manifest {
  int64_t step = 0;              // finished steps
  int64_t consumed_samples = 0;  // where the data go on
  uint64_t seed = 0;
  layout::Mesh mesh;                               // that wrote it
  std::string config;                              // the resolved configuration, YAML
  base::Json model_config = base::Json::object();  // Hugging Face's config.json
  base::Json optimizer = base::Json::object();     // scalars of optimizer, schedule and loss scaler
  base::Json metrics;  // of the evaluation at this step: {"eval_loss": 2.1}; null: there was none
  base::Json data;  // identity of the training data (data/identity.h); null: not known
  layout::ModelDescription description;
  bool merged =
      false;  // whole tensors in Hugging Face's layout; else the slices of each rank and index.json
  /// XXH3 of each stored tensor: file -> name -> hash.
  std::map<std::string, std::map<std::string, uint64_t>> checksums;
  uint64_t index_checksum = 0;  // of index.json's text; 0 when merged
  /// XXH3 of each other file that was written with it: config.json, the tokenizer's.
  std::map<std::string, uint64_t> companions;
};

/// The text of trireme.json; it carries a checksum of itself.
std::string to_text(const Manifest& manifest);
/// Reads trireme.json. FormatError naming the path: another format or version, damage, missing
/// fields.
Manifest read_manifest(const std::string& path);

/// The same model on another mesh: blocks are distributed over its stages, every parameter follows
/// its layers.
/// `blocks_per_stage`: empty for an even split.
layout::ModelDescription retarget(const layout::ModelDescription& description,
                                  const layout::Mesh& mesh,
                                  const std::vector<int>& blocks_per_stage = {});

}  // namespace trireme::checkpoint
