#include "trireme/train/prepare.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "trireme/base/error.h"
#include "trireme/base/plugin.h"
#include "trireme/checkpoint/folder.h"
#include "trireme/models/registry.h"
#include "trireme/optim/groups.h"
#include "trireme/optim/lr.h"
#include "trireme/optim/optimizers.h"
#include "trireme/text/tokenizer.h"
#include "trireme/train/evaluator.h"
#include "trireme/train/hook.h"
#include "trireme/train/run_state.h"

namespace trireme::train {
namespace {

void check_tokenizer(const std::string& path, int64_t vocab_size) {
  int64_t tokens = text::Tokenizer::load(path)->vocab_size();
  if (tokens > vocab_size) {
    throw base::ConfigError(
        fmt::format("tokenizer {} has {} tokens, but the model's vocabulary has {} entries: raise "
                    "model.vocab_size to at least {}, or name the model's own tokenizer",
                    path, tokens, vocab_size, tokens));
  }
}

std::string words_for(const data::FieldSpec& field) {
  return field.shape.empty() ? field.name : fmt::format("{} [{}]", field.name, fmt::join(field.shape, " x "));
}

/// ConfigError unless samples hold what the model trains on.
void check_fields(const nn::ModelDef& def, const data::Dataset& dataset, const base::Json& model) {
  const std::vector<data::FieldSpec> fields = dataset.fields();
  for (const nn::BatchTensor& wanted : def.trains_on) {
    const auto found = std::ranges::find(fields, wanted.name, &data::FieldSpec::name);
    if (found != fields.end() && (wanted.dims < 0 || std::ssize(found->shape) == wanted.dims)) continue;
    std::vector<std::string> there;
    for (const data::FieldSpec& field : fields) there.push_back(words_for(field));
    const std::string head = model.contains("head") ? " with head " + model["head"].get<std::string>() : "";
    throw base::ConfigError(fmt::format(
        "a model of family {}{} trains on samples with {}{}; those of {} hold {}. Choose another kind in data.dataset or in the "
        "type of data.train (docs/data.md lists what each holds), or another model.head",
        model.value("family", model.value("model_type", std::string("?"))), head, wanted.name,
        wanted.dims < 0 ? "" : fmt::format(" of {} dimensions", wanted.dims), dataset.description(), fmt::join(there, ", ")));
  }
}

/// Which optimizers do not go with experts of a data rank's own.
void check_experts(const Prepared& run) {
  const config::RunConfig& config = run.config;
  if (run.placement.options.expert_axis != layout::Axis::dp || run.placement.mesh.size(layout::Axis::dp) == 1) return;
  if (config.train.zero_optimization.effective_stage() > 0 && optim::make_optimizer(config.optim)->collective())
    throw base::ConfigError(fmt::format(
        "optim.name {} looks at whole tensors, which train.zero_optimization splits over data ranks, and with "
        "train.dist.expert_parallel dp these have other experts each; switch ZeRO off, set expert_parallel to tp or take "
        "another optimizer",
        config.optim.name));
}

/// What a model's own rows, statistics and averages do not go with.
void check_whole(const nn::ModelDef& def, const Prepared& run) {
  const config::Train& train = run.config.train;
  if (def.whole_batches && (train.batch_rampup.start || (!train.train_iter && run.length.samples % run.plan.global_batch_size != 0)))
    throw base::ConfigError(
        "the model's loss is a function of all rows of a micro-batch, so every step must be whole: give the run's length as "
        "train.train_iter, and no train.batch_rampup");
  if (!def.average_keeps) return;
  if (train.zero_optimization.effective_stage() == 3)
    throw base::ConfigError("the model keeps moving averages of its weights, which train.zero_optimization.stage 3 splits; use 2 or less");
  if (train.working_dtype() != "fp32" && train.working_dtype() != "fp64")
    throw base::ConfigError(fmt::format("the model keeps moving averages of its weights, for which {} is too coarse; train in fp32",
                                        train.working_dtype()));
}

}  // namespace

Prepared prepare(const config::RunConfig& given, int ranks) {
  base::load_plugins(given.plugins);
  Prepared run;
  run.config = config::resolved(given, ranks);
  run.model = model_tree(run.config.model);
  // Beside an adapter, its own or that of its weights, the model stays as it is, unless something else is said.
  if (run.model.contains("adapter") && !run.model["adapter"].is_null() && run.config.optim.groups.empty())
    run.config.optim.groups = {{.pattern = "*.lora_*"}, {.pattern = "*", .freeze = true}};
  const config::RunConfig& config = run.config;
  run.plan = config::resolve_batch(config.train, *config.train.dist.data_parallel_size);
  run.placement = placement_of(config, ranks, run.plan.micro_batches);
  run.description = describe(run.model, run.placement, config.data.seq_length);
  const nn::ModelDef def = models::make_model(run.model, run.placement.mesh.size(layout::Axis::tp));
  const int64_t vocab_size = def.vocab_size;
  if (config.tokenizer && vocab_size > 0) check_tokenizer(*config.tokenizer, vocab_size);
  run.train_data = open_data(config, config.data.train, true, vocab_size);
  run.train_identity = run.train_data->identity();
  check_fields(def, *run.train_data, run.model);
  if (config.train.evaluation.enabled && !config.data.valid.empty())
    run.valid_data = open_data(config, config.data.valid, false, vocab_size);
  if (run.valid_data) check_fields(def, *run.valid_data, run.model);
  run.length = config::resolve_length(config, run.plan.global_batch_size, run.train_data->size());
  check_whole(def, run);
  for (int step : config.train.trace.steps.value_or(std::vector<int>{}))
    if (step > run.length.steps)
      throw base::ConfigError(
          fmt::format("train.trace.steps: step {} lies beyond the run's {}; name steps up to there",
                      step, run.length.steps));
  optim::learning_rate(config.train.scheduler, config.optim.lr, 0, run.length.steps);
  optim::check_groups(run.description.parameters, config.optim);
  optim::make_optimizer(config.optim);
  check_experts(run);
  for (const std::string& name : config.train.evaluation.metrics) eval_metrics().get(name);
  for (const std::string& name : config.train.hooks) hooks().get(name);
  return run;
}

std::optional<checkpoint::Checkpoint> open_resumed(const Prepared& run, bool resume) {
  const std::string& folder = run.config.train.output_dir;
  std::error_code none;
  if (!resume && std::filesystem::exists(folder + "/metrics.jsonl") && std::filesystem::file_size(folder + "/metrics.jsonl", none) > 0) {
    throw base::ConfigError(fmt::format(
        "{} already holds a run; continue it with --resume or choose another train.output_dir",
        folder));
  }
  auto latest = resume ? checkpoint::find_latest(folder + "/checkpoints") : std::nullopt;
  if (!latest) return std::nullopt;
  checkpoint::Checkpoint checkpoint(*latest);
  check_same_run(run, checkpoint);
  return checkpoint;
}

}  // namespace trireme::train
