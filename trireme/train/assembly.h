#pragma once
// Assembly: a model laid out on the ranks of a job: mesh, schedule and this rank's layers. What training, evaluation
// and generation have in common before they differ.

#include <memory>
#include <optional>

#include "trireme/checkpoint/load.h"
#include "trireme/config/run_config.h"
#include "trireme/nn/builder.h"
#include "trireme/optim/param_gather.h"
#include "trireme/pipeline/stage.h"
#include "trireme/schedule/schedule.h"

namespace trireme::train {

/// How a model is to lie.
struct Placement {
  layout::Mesh mesh;
  schedule::Schedule schedule;
  std::optional<std::vector<int>> blocks_per_chunk = {};  // nothing: an even split
  nn::BuildOptions options = {};
};

/// The placement that a run's configuration asks for; `micro_batches` a step. ConfigError for what cannot be.
Placement placement_of(const config::RunConfig& config, int ranks, int64_t micro_batches);
/// How the configuration shares the blocks out over so many chunks. ConfigError where that cannot be.
std::vector<int> blocks_per_chunk(const config::RunConfig& config, int chunks);
/// What the configuration asks of a pipeline stage.
pipeline::StageOptions stage_options(const config::RunConfig& config, int stage);
/// For evaluation and generation, where nothing flows backward.
Placement forward_placement(const layout::Mesh& mesh, base::DType dtype, int64_t micro_batches);

struct Assembly {
  dist::DeviceMesh mesh;
  schedule::Schedule schedule;
  std::unique_ptr<nn::Model> model;  // declared; materialize or load it before use
  std::unique_ptr<optim::ParamGather> parameters;  // gathers those that data ranks split; made with them
  layout::ModelDescription description;
  std::string adapter = {};  // PEFT folder from which its parameters begin; empty: none
  std::string teacher = {};  // folder of the model that this one learns from; empty: none
};

/// The model tree of a configuration; `pretrained: DIR` takes DIR's config.json, and keys beside it win. `strict`, which
/// goes with it, is no part of the tree. `teacher: DIR` becomes {path, model}: with DIR's config.json.
base::Json model_tree(const base::Json& given);

/// The model as it would lie, without memory. Pure.
layout::ModelDescription describe(const base::Json& tree, const Placement& placement, int64_t seq);

/// Collective over the world. ConfigError: heads that tp does not divide, fewer blocks than stages, `seq` beyond the
/// model's positions.
std::unique_ptr<Assembly> assemble(const base::Json& tree, const Placement& placement, int64_t seq, dist::World& world);

/// Draws the initial weights, or reads `from`; not `strict`, only what both have, and says what differs. Data ranks
/// split what ZeRO's stage says and no rank ever holds all of it. Gradient buffers live where the data ranks can read
/// them. Local.
checkpoint::Mismatch make_parameters(Assembly& assembly, bool gradients, const checkpoint::Checkpoint* from,
                                     int zero_stage = 0, bool strict = true);

/// Replaces the parameters by a checkpoint's moving averages of them; those that were frozen have none and stay.
/// FormatError where it keeps none. Local.
void load_averages(const Assembly& assembly, const checkpoint::Checkpoint& from);

}  // namespace trireme::train
