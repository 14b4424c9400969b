#include "trireme/train/run_state.h"

#include <ATen/ATen.h>

#include <set>

#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/base/wording.h"
#include "trireme/checkpoint/folder.h"
#include "trireme/checkpoint/together.h"
#include "trireme/config/load.h"
#include "trireme/data/identity.h"
#include "trireme/dist/redistribute.h"
#include "trireme/models/adapter.h"
#include "trireme/models/registry.h"
#include "trireme/optim/lr.h"

namespace trireme::train {
namespace {

// A checkpoint holds the masters of 16-bit parameters in their place.
std::vector<nn::TensorPart> parameters_of(const Assembly& assembly,
                                          const optim::ShardedOptimizer& optimizer) {
  std::vector<nn::TensorPart> parts = optimizer.masters();
  for (nn::TensorPart& part : nn::parts_of(assembly.model->store, assembly.mesh.coord)) {
    const nn::Param* param = assembly.model->store.find(part.name);
    const base::DType dtype = param->spec.dtype;
    const bool has_master = !param->frozen && dist::scalar_type(dtype) != nn::wide_type(dtype);
    if (!has_master) parts.push_back(std::move(part));
  }
  return parts;
}

/// Keys of a model that say nothing of what its weights mean: how much is dropped while training, how weights were
/// drawn, what a loss beside the main one counts, and how files describe themselves.
bool may_change(const std::string& key) {
  static const std::set<std::string> kFree = {"initializer_range", "initializer_factor", "init_std", "router_aux_loss_coef",
                                              "torch_dtype", "dtype", "transformers_version", "use_cache", "_name_or_path"};
  return key.find("drop") != std::string::npos || kFree.contains(key);
}

/// ConfigError where a run goes on without its adapter, or with another one.
void check_adapter(const base::Json& model, const checkpoint::Checkpoint& checkpoint) {
  const base::Json held = checkpoint.manifest()->model_config.value("adapter", base::Json()),
                   given = model.value("adapter", base::Json());
  if (!held.is_object()) return;
  if (!given.is_object())
    throw base::ConfigError(fmt::format(
        "model.adapter is not given, but {0} was trained with the adapter {1}: resume with the same one, or merge it into the "
        "weights (`trireme ckpt convert {0} DIR --to hf`) and start from DIR with model.pretrained",
        checkpoint.path(), held.dump()));
  if (const auto difference = models::adapter_difference(given, held))
    throw base::ConfigError(fmt::format(
        "model.adapter.{0} is {1}, but {2} was trained with {3}: resume with the same value, or merge its adapter into the "
        "weights (`trireme ckpt convert {2} DIR --to hf`) and start a new one from DIR with model.pretrained",
        difference->key, difference->given.dump(), checkpoint.path(), difference->held.dump()));
}

}  // namespace

void open_folder(const config::RunConfig& config, const comm::Comm& world, base::Logger& log) {
  const std::string& folder = config.train.output_dir;
  checkpoint::together(world, [&] {
    if (world.rank() != 0) return std::string();
    base::make_folders(folder, "making the run's folder");
    base::make_folders(folder + "/checkpoints");
    checkpoint::remove_stale(folder + "/checkpoints");
    base::write_file_atomic(folder + "/config.yaml", config::to_yaml(config));
    return std::string();
  });
  log.open_file(fmt::format("{}/log.rank{}.txt", folder, world.rank()));
}

namespace {

/// Whose tokenizer and processor of images go along: those that are named, or those of the weights that the run began with.
std::string companions_of(const config::RunConfig& config) {
  if (config.tokenizer) return *config.tokenizer;
  const base::Json& model = config.model;
  return model.contains("pretrained") ? checkpoint::Checkpoint(model["pretrained"].get<std::string>()).path() : "";
}

}  // namespace

checkpoint::SaveRequest checkpoint_of(const Prepared& run, const Assembly& assembly,
                                      const optim::ShardedOptimizer& optimizer, const StepGuard& guard,
                                      const Position& position) {
  const config::RunConfig& config = run.config;
  base::Json model = models::resolve_model(run.model);
  // The checkpoint holds what the run's adapter began with.
  if (model.contains("adapter") && model["adapter"].is_object()) model["adapter"].erase("path");
  checkpoint::SaveRequest request;
  request.root = config.train.output_dir + "/checkpoints";
  request.parameters = parameters_of(assembly, optimizer);
  request.optimizer = optimizer.state();
  request.tokenizer = companions_of(config);
  request.max_to_keep = config.train.checkpointer.max_to_keep.value_or(0);
  request.manifest = {.step = position.step,
                      .consumed_samples = position.consumed_samples,
                      .seed = static_cast<uint64_t>(config.train.seed),
                      .mesh = assembly.mesh.mesh,
                      .config = config::to_yaml(config),
                      .model_config = std::move(model),
                      .optimizer = {{"name", config.optim.name},
                                    {"steps_taken", optimizer.steps_taken()},
                                    {"guard", guard.state()},
                                    {"run_steps", run.length.steps}},
                      .metrics = {},
                      .data = data::to_json(run.train_identity),
                      .description = assembly.description,
                      .merged = config.train.checkpointer.format == "merged",
                      .checksums = {},
                      .companions = {}};
  return request;
}

std::optional<double> best_evaluation(const config::RunConfig& config) {
  if (!config.train.checkpointer.keep_best) return std::nullopt;
  const std::string& name = *config.train.checkpointer.keep_best;
  auto best = checkpoint::find_pointed(config.train.output_dir + "/checkpoints", checkpoint::kBest);
  if (!best) return std::nullopt;
  const base::Json metrics = checkpoint::read_manifest(*best + "/" + checkpoint::kManifestFile).metrics;
  if (!metrics.is_object() || !metrics.contains(name) || !metrics[name].is_number()) return std::nullopt;
  return metrics[name].get<double>();
}

void check_same_run(const Prepared& run, const checkpoint::Checkpoint& checkpoint) {
  const config::RunConfig& config = run.config;
  bool stateless = config.optim.name == "sgd" && config.optim.momentum.value_or(0) == 0;  // plain SGD keeps nothing
  if (!checkpoint.manifest() || (!stateless && !checkpoint.has_optimizer())) {
    throw base::ConfigError(fmt::format("{} holds no training state to resume{}; start from its weights with model.pretrained",
                                        checkpoint.path(),
                                        checkpoint.manifest() ? ": its optimizer's files were left behind" : ""));
  }
  const checkpoint::Manifest& manifest = *checkpoint.manifest();
  if (manifest.seed != static_cast<uint64_t>(config.train.seed)) {
    throw base::ConfigError(fmt::format("{} was trained with train.seed {}, this run has {}: the data order would change; "
                                        "resume with the same seed", checkpoint.path(), manifest.seed, config.train.seed));
  }
  if (run.length.steps < manifest.step) {
    throw base::ConfigError(fmt::format("the run ends after {} (train.train_iter), but {} stands at step {}: give it "
                                        "more steps, or train anew in another train.output_dir",
                                        base::counted(run.length.steps, "step"), checkpoint.path(), manifest.step));
  }
  base::Json model = models::resolve_model(run.model);
  check_adapter(model, checkpoint);
  for (const auto& [key, value] : model.items()) {
    if (key == "adapter" && manifest.model_config.contains(key)) continue;
    bool same = manifest.model_config.contains(key) && manifest.model_config[key] == value;
    if (same || may_change(key)) continue;
    throw base::ConfigError(fmt::format("model.{} is {}, but {} was trained with {}: resume with the same value, or start "
                                        "from its weights with model.pretrained", key,
                                        value.dump(), checkpoint.path(),
                                        manifest.model_config.contains(key) ? manifest.model_config[key].dump() : "none"));
  }
  std::string optimizer = manifest.optimizer.value("name", config.optim.name);
  if (optimizer != config.optim.name) {
    throw base::ConfigError(fmt::format("optim.name is {}, but {} was trained with {}: resume with the same optimizer, or "
                                        "start from its weights with model.pretrained", config.optim.name,
                                        checkpoint.path(), optimizer));
  }
  if (!manifest.data.is_null())
    data::refuse_change(data::identity_from(manifest.data), run.train_identity, checkpoint.path());
}

std::string note_on_resume(const Prepared& run, const checkpoint::Manifest& manifest) {
  int64_t now = run.length.steps, before = manifest.optimizer.value("run_steps", now);
  if (now == before || manifest.step == now) return "";
  const config::Scheduler& scheduler = run.config.train.scheduler;
  double lr = run.config.optim.lr;
  return fmt::format("note: the run now has {} steps instead of {}, and the learning rate's schedule ({}) spans them: "
                     "step {} has {:.3g} where it had {:.3g}",
                     now, before, scheduler.name, manifest.step + 1,
                     optim::learning_rate(scheduler, lr, manifest.step, now),
                     optim::learning_rate(scheduler, lr, manifest.step, before));
}

std::string note_on_mismatch(const Prepared& run, const checkpoint::Mismatch& mismatch, const std::string& path) {
  return fmt::format("model.{}: {} of {} parameters come from {}, the others start anew; {}",
                     run.config.model.contains("strict") ? "strict false" : "head",
                     mismatch.common, run.description.parameters.size(), path, mismatch.text(SIZE_MAX));
}

void fill_masters(const Assembly& assembly, optim::ShardedOptimizer& optimizer, const checkpoint::Checkpoint* from) {
  for (const nn::TensorPart& part : optimizer.masters()) {
    // What a checkpoint that fits in part does not have was drawn.
    if (from && from->holds(part)) {
      from->read(part);
      continue;
    }
    const nn::Param& param = *assembly.model->store.find(part.name);
    at::Tensor whole = at::empty({param.slice.count()}, part.data.options());
    nn::initialize(param, assembly.model->options.seed, whole);
    at::Tensor values = part.data;
    values.copy_(whole.narrow(0, part.flat.begin, part.flat.size()));
  }
  optimizer.start_averages();
}

Position restore_run(const checkpoint::Checkpoint& checkpoint, optim::ShardedOptimizer& optimizer, StepGuard& guard) {
  const checkpoint::Manifest& manifest = *checkpoint.manifest();
  std::vector<nn::TensorPart> parts = optimizer.state();
  std::erase_if(parts, [&](const nn::TensorPart& part) {
    return part.name.ends_with(".ema") && !checkpoint.tensors().contains(part.name);
  });
  if (!parts.empty()) checkpoint::load_optimizer(checkpoint, parts, optimizer.state_names());
  optimizer.set_steps_taken(manifest.optimizer.value("steps_taken", manifest.step));
  guard.restore(manifest.optimizer.value("guard", base::Json()));
  return {.step = manifest.step, .consumed_samples = manifest.consumed_samples};
}

}  // namespace trireme::train
