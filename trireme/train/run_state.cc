#include "trireme/train/run_state.h"

#include <filesystem>

#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/checkpoint/folder.h"
#include "trireme/checkpoint/save.h"
#include "trireme/checkpoint/together.h"
#include "trireme/config/load.h"
#include "trireme/models/registry.h"

namespace trireme::train {

namespace fs = std::filesystem;

namespace {

// What must not change under a run that goes on: the model but for its dropout, and the optimizer.
void check_same_run(const config::RunConfig& config, const checkpoint::Checkpoint& checkpoint,
                    const checkpoint::Manifest& manifest) {
  base::Json model = models::resolve_model(model_tree(config.model));
  for (const auto& [key, value] : model.items()) {
    bool same = manifest.model_config.contains(key) && manifest.model_config[key] == value;
    if (same || key.ends_with("_pdrop")) continue;
    throw base::ConfigError(fmt::format("model.{} is {}, but {} was trained with {}: resume with the same model", key,
                                        value.dump(), checkpoint.path(),
                                        manifest.model_config.contains(key) ? manifest.model_config[key].dump() : "none"));
  }
  std::string optimizer = manifest.optimizer.value("name", config.optim.name);
  if (optimizer != config.optim.name) {
    throw base::ConfigError(fmt::format("optim.name is {}, but {} was trained with {}: resume with the same optimizer, or "
                                        "start from its weights with model.pretrained", config.optim.name,
                                        checkpoint.path(), optimizer));
  }
}

}  // namespace

std::optional<checkpoint::Checkpoint> open_run(const config::RunConfig& config, const dist::DeviceMesh& mesh,
                                               bool resume, base::Logger& log) {
  const std::string& folder = config.train.output_dir;
  checkpoint::together(mesh.world, [&] {
    if (mesh.world.rank() != 0) return std::string();
    if (!resume && fs::exists(folder + "/metrics.jsonl")) {
      throw base::ConfigError(fmt::format("{} already holds a run; continue it with --resume or choose another "
                                          "train.output_dir", folder));
    }
    std::error_code error;
    fs::create_directories(folder + "/checkpoints", error);
    if (error) throw base::IoError(folder, error.value(), "making the run's folder");
    checkpoint::remove_stale(folder + "/checkpoints");
    base::write_file_atomic(folder + "/config.yaml", config::to_yaml(config));
    return std::string();
  });
  log.open_file(fmt::format("{}/log.rank{}.txt", folder, mesh.world.rank()));
  if (!resume) return std::nullopt;
  auto latest = checkpoint::find_latest(folder + "/checkpoints");
  if (latest) return checkpoint::Checkpoint(*latest);
  if (mesh.world.rank() == 0) log.info("no checkpoint in {}: starting from the first step", folder);
  return std::nullopt;
}

std::string save_run(const config::RunConfig& config, const Assembly& assembly,
                     const optim::ShardedOptimizer& optimizer, const Position& position) {
  checkpoint::SaveRequest request;
  request.root = config.train.output_dir + "/checkpoints";
  request.parameters = nn::parts_of(assembly.model->store, assembly.mesh.coord);
  request.optimizer = optimizer.state();
  request.tokenizer = config.tokenizer.value_or("");
  request.max_to_keep = config.train.checkpointer.max_to_keep.value_or(0);
  request.manifest = {.step = position.step,
                      .consumed_samples = position.consumed_samples,
                      .seed = static_cast<uint64_t>(config.train.seed),
                      .mesh = assembly.mesh.mesh,
                      .config = config::to_yaml(config),
                      .model_config = models::resolve_model(model_tree(config.model)),
                      .optimizer = {{"name", config.optim.name}, {"steps_taken", optimizer.steps_taken()}},
                      .description = assembly.description,
                      .merged = config.train.checkpointer.format == "merged",
                      .checksums = {}};
  return checkpoint::save(request, assembly.mesh.world);
}

Position restore_run(const config::RunConfig& config, const checkpoint::Checkpoint& checkpoint,
                     optim::ShardedOptimizer& optimizer) {
  std::vector<nn::TensorPart> parts = optimizer.state();
  // Plain SGD keeps nothing.
  if (!checkpoint.manifest() || (!parts.empty() && !checkpoint.has_optimizer())) {
    throw base::ConfigError(fmt::format("{} holds no training state to resume; start from its weights with model.pretrained",
                                        checkpoint.path()));
  }
  const checkpoint::Manifest& manifest = *checkpoint.manifest();
  if (manifest.seed != static_cast<uint64_t>(config.train.seed)) {
    throw base::ConfigError(fmt::format("{} was trained with train.seed {}, this run has {}: the data order would change; "
                                        "resume with the same seed", checkpoint.path(), manifest.seed, config.train.seed));
  }
  check_same_run(config, checkpoint, manifest);
  if (!parts.empty()) checkpoint::load_optimizer(checkpoint, parts);
  optimizer.set_steps_taken(manifest.optimizer.value("steps_taken", manifest.step));
  return {.step = manifest.step, .consumed_samples = manifest.consumed_samples};
}

}  // namespace trireme::train
