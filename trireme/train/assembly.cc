#include "trireme/train/assembly.h"

#include <fmt/ranges.h>

#include <ATen/ATen.h>

#include "trireme/base/error.h"
#include "trireme/base/wording.h"
#include "trireme/dist/redistribute.h"
#include "trireme/layout/stage_manager.h"
#include "trireme/models/adapter.h"
#include "trireme/models/blocks/distillation.h"
#include "trireme/models/registry.h"
#include "trireme/nn/tensor_part.h"
#include "trireme/schedule/generators.h"
#include "trireme/schedule/simulate.h"

namespace trireme::train {
namespace {

int count_blocks(const nn::ModelDef& def) {
  int blocks = 0;
  for (const nn::LayerDef& layer : def.layers) blocks += layer.block;
  return blocks;
}

std::vector<int> blocks_of(const nn::ModelDef& def, const Placement& placement) {
  if (placement.blocks_per_chunk) return *placement.blocks_per_chunk;
  return layout::distribute_layers(count_blocks(def), placement.schedule.chunks);
}

// Flat zeroed memory in the host's shared segment, so that data ranks reduce it without copies.
at::Tensor shared_zeros(const dist::DeviceMesh& mesh, int64_t count, at::ScalarType type) {
  return dist::shared_empty(mesh.dp, count, type, mesh.device).zero_();
}

}  // namespace

namespace {

void check_recompute(const config::RunConfig& config, int stages) {
  const config::ActivationCheckpoint& recompute = config.train.activation_checkpoint;
  if (!recompute.enabled || !recompute.per_stage) return;
  const std::string given = fmt::format("train.activation_checkpoint.per_stage [{}]", fmt::join(*recompute.per_stage, ", "));
  if (recompute.mode != "full" || recompute.every != 1)
    throw base::ConfigError(given + ": goes with mode full and every 1; leave these out");
  if (std::ssize(*recompute.per_stage) != stages)
    throw base::ConfigError(fmt::format("{}: give a count for each pipeline stage, {} in all", given, stages));
  if (config.train.dist.schedule == "auto")
    throw base::ConfigError(given + ": train.dist.schedule auto measures layers that are treated alike; name a schedule");
}

}  // namespace

Placement placement_of(const config::RunConfig& config, int ranks, int64_t micro_batches) {
  const config::Dist& dist = config.train.dist;
  config::Degrees degrees = config::resolve_degrees(dist, ranks);
  Placement placement;
  placement.mesh = layout::Mesh({.pp = degrees.pp, .dp = degrees.dp, .tp = degrees.tp});
  check_recompute(config, degrees.pp);
  if (dist.schedule_file) {
    placement.schedule = schedule::read(*dist.schedule_file, "train.dist.schedule_file");
    if (placement.schedule.micro_batches != micro_batches || placement.schedule.ranks != degrees.pp) {
      throw base::ConfigError(fmt::format(
          "train.dist.schedule_file: {} is a schedule of {} on {}, but a step has {} on {}: change "
          "train.num_accumulation_steps or train.dist.pipeline_parallel_size, or the file",
          *dist.schedule_file, base::counted(placement.schedule.micro_batches, "micro-batch"),
          base::counted(placement.schedule.ranks, "stage"), micro_batches, degrees.pp));
    }
  } else {
    // What `auto` comes to is known when the ranks have been measured.
    const std::string any = dist.chunks.value_or(1) > 1 ? "interleaved" : "1f1b";
    const std::string name = dist.schedule == "auto" ? any : dist.schedule;
    placement.schedule = schedule::generate(name, {.ranks = degrees.pp,
                                                   .micro_batches = static_cast<int>(micro_batches),
                                                   .chunks_per_rank = dist.chunks});
  }
  placement.options = {.dtype = base::dtype_of(config.train.working_dtype()),
                       .sequence_parallel = dist.sequence_parallel,
                       .expert_axis = dist.expert_parallel == "dp" ? layout::Axis::dp : layout::Axis::tp,
                       .seed = static_cast<uint64_t>(config.train.seed),
                       .fuse = config.train.fuse == "auto"};
  placement.blocks_per_chunk = blocks_per_chunk(config, placement.schedule.chunks);
  return placement;
}

std::vector<int> blocks_per_chunk(const config::RunConfig& config, int chunks) {
  const config::Dist& dist = config.train.dist;
  const layout::Mesh mesh({.pp = 1, .dp = 1, .tp = dist.tensor_parallel_size});
  const layout::ModelDescription whole =
      describe(model_tree(config.model), {.mesh = mesh, .schedule = schedule::gpipe({})}, config.data.seq_length);
  std::vector<double> costs;
  double first = 0, last = 0;  // of what comes before the first block, and after the last one
  int encoder = 0;
  for (const auto& layer : whole.layers) {
    if (layer.block) costs.push_back(layer.flops + std::exchange(last, 0));
    else (costs.empty() ? first : last) += layer.flops;
    encoder += layer.block && layer.source;
  }
  const int blocks = static_cast<int>(costs.size());
  if (auto explicit_counts = config::resolve_stage_layers(dist, blocks, chunks)) return *explicit_counts;
  if (dist.balance == "cost") return layout::distribute_layers_by_cost(costs, chunks, first, last);
  if (encoder > 0 && chunks > 1)
    return layout::distribute_encoder_decoder(encoder, blocks - encoder, chunks).layers_per_part;
  return layout::distribute_layers(blocks, chunks);
}

pipeline::StageOptions stage_options(const config::RunConfig& config, int stage) {
  const config::ActivationCheckpoint& recompute = config.train.activation_checkpoint;
  const bool full = recompute.mode == "full";
  if (!recompute.enabled) return {};
  if (recompute.per_stage) return {.recompute_blocks = (*recompute.per_stage)[static_cast<size_t>(stage)]};
  return {.recompute_every = full ? recompute.every : 0, .recompute_attention = !full};
}

Placement forward_placement(const layout::Mesh& mesh, base::DType dtype, int64_t micro_batches) {
  return {.mesh = mesh,
          .schedule = schedule::forward_only({.ranks = mesh.size(layout::Axis::pp),
                                              .micro_batches = static_cast<int>(micro_batches)}),
          .options = {.dtype = dtype}};
}

namespace {

/// The settings that a PEFT folder brings; keys beside its path win where they fit its matrices.
base::Json adapter_settings(const base::Json& given) {
  const auto path = given["path"].get<std::string>();
  const base::Json held = checkpoint::Checkpoint(path).model_config();
  base::Json settings = held;
  for (const auto& [key, value] : given.items()) settings[key] = value;
  if (const auto difference = models::adapter_difference(settings, held); difference && difference->shapes)
    throw base::ConfigError(fmt::format("model.adapter.{0} is {1}, but the adapter of model.adapter.path {2} has {3}: leave "
                                        "model.adapter.{0} out, or name another adapter",
                                        difference->key, difference->given.dump(), path, difference->held.dump()));
  return settings;
}

/// ConfigError where weights hold an adapter (`held`) and another one, or none, is asked for.
void check_held_adapter(const base::Json& given, const base::Json& held, const std::string& pretrained) {
  const std::string merge = fmt::format(
      "merge it into the weights first (`trireme ckpt convert {} DIR --to hf`) and give DIR as model.pretrained", pretrained);
  if (given.is_null())
    throw base::ConfigError(fmt::format("model.adapter is null, but model.pretrained {} holds the adapter {}: {}", pretrained,
                                        held.dump(), merge));
  const auto difference = models::adapter_difference(given, held);
  if (difference && difference->shapes)
    throw base::ConfigError(fmt::format(
        "model.adapter.{} is {}, but the adapter that model.pretrained {} holds has {}: give the same to train that one "
        "on, or {}",
        difference->key, difference->given.dump(), pretrained, difference->held.dump(), merge));
}

base::Json with_teacher(base::Json tree) {
  if (tree.contains("teacher") && tree["teacher"].is_string()) {
    const auto path = tree["teacher"].get<std::string>();
    tree["teacher"] = {{"path", path}, {"model", checkpoint::Checkpoint(path).model_config()}};
  }
  return tree;
}

}  // namespace

base::Json model_tree(const base::Json& given) {
  if (given.contains("strict") && (!given["strict"].is_boolean() || !given.contains("pretrained")))
    throw base::ConfigError("model.strict: expected true or false, beside model.pretrained");
  if (!given.contains("pretrained")) return with_teacher(given);
  if (!given["pretrained"].is_string()) throw base::ConfigError("model.pretrained: expected a folder");
  const auto pretrained = given["pretrained"].get<std::string>();
  base::Json tree = checkpoint::Checkpoint(pretrained).model_config();
  models::check_begins_with(given, tree, pretrained);
  const base::Json held = tree.value("adapter", base::Json());
  for (const auto& [key, value] : given.items())
    if (key != "pretrained" && key != "strict") tree[key] = value;
  if (given.contains("adapter") && given["adapter"].is_object() && given["adapter"].contains("path"))
    tree["adapter"] = adapter_settings(given["adapter"]);
  if (held.is_object() && given.value("strict", true)) check_held_adapter(tree["adapter"], held, pretrained);
  return with_teacher(std::move(tree));
}

namespace {

void check_targets(const layout::ModelDescription& model, const nn::LowRank& adapter) {
  constexpr std::string_view kIn = ".lora_A.weight";
  const auto check_pattern = [&](const char* key, const std::string& pattern) {
    const bool found = std::ranges::any_of(model.parameters, [&](const layout::ParamSpec& spec) {
      return spec.name.ends_with(kIn) && nn::matches_module(pattern, spec.name.substr(0, spec.name.size() - kIn.size()));
    });
    if (!found)
      throw base::ConfigError(fmt::format("model.adapter.{}: {} matches no module that has an adapter (target_modules); "
                                          "`trireme inspect` lists the parameters", key, pattern));
  };
  for (const std::string& target : adapter.targets) {
    const bool found = std::ranges::any_of(model.parameters, [&](const layout::ParamSpec& spec) {
      return spec.name.ends_with(kIn) && nn::names_module(target, spec.name.substr(0, spec.name.size() - kIn.size()));
    });
    if (!found)
      throw base::ConfigError(fmt::format("model.adapter.target_modules: no linear module of the model is called {}; "
                                          "`trireme inspect` lists the parameters",
                                          target));
  }
  for (const auto& [pattern, _] : adapter.ranks) check_pattern("rank_pattern", pattern);
  for (const auto& [pattern, _] : adapter.alphas) check_pattern("alpha_pattern", pattern);
}

void check_experts(const nn::ModelDef& def, const Placement& placement) {
  if (placement.options.expert_axis != layout::Axis::dp) return;
  const std::string given = "train.dist.expert_parallel dp";
  if (def.experts == 0)
    throw base::ConfigError(given + ": the model has no experts that data ranks could hold; leave it at tp");
  if (const int ranks = placement.mesh.size(layout::Axis::dp); ranks > def.experts)
    throw base::ConfigError(fmt::format("{}: {} data ranks cannot each hold one of {} experts; use fewer, or expert_parallel tp", given,
                                        ranks, def.experts));
}

}  // namespace

layout::ModelDescription describe(const base::Json& tree, const Placement& placement, int64_t seq) {
  nn::ModelDef def = models::make_model(tree, placement.mesh.size(layout::Axis::tp));
  if (def.max_positions > 0 && seq > def.max_positions) {
    throw base::ConfigError(fmt::format(
        "data.seq_length {} is more than the model's {} positions; lower it or raise them in model", seq,
        def.max_positions));
  }
  check_experts(def, placement);
  nn::BuildOptions options = placement.options;
  options.low_rank = models::read_adapter(tree);
  layout::ModelDescription description =
      nn::describe(def, placement.mesh, options, blocks_of(def, placement), placement.schedule.rank_of_chunk, seq);
  check_targets(description, options.low_rank);
  return description;
}

std::unique_ptr<Assembly> assemble(const base::Json& tree, const Placement& placement, int64_t seq, dist::World& world) {
  auto assembly = std::make_unique<Assembly>();
  assembly->description = describe(tree, placement, seq);
  assembly->mesh = dist::DeviceMesh(world, placement.mesh);
  assembly->schedule = placement.schedule;
  nn::ModelDef def = models::make_model(tree, placement.mesh.size(layout::Axis::tp));
  std::vector<int> blocks = blocks_of(def, placement);
  nn::BuildOptions options = placement.options;
  options.low_rank = models::read_adapter(tree);
  if (options.low_rank.rank > 0) assembly->adapter = tree["adapter"].value("path", "");
  if (tree.contains("teacher") && tree["teacher"].is_object()) assembly->teacher = tree["teacher"].value("path", "");
  assembly->model = nn::build_model(std::move(def), assembly->mesh, options, blocks, placement.schedule.rank_of_chunk);
  return assembly;
}

namespace {

/// FormatError where the folder's adapter is not the model's.
void load_adapter(Assembly& assembly) {
  const checkpoint::Checkpoint source(assembly.adapter);
  std::vector<layout::ParamSpec> specs;
  for (const layout::ParamSpec& spec : assembly.description.parameters)
    if (nn::is_low_rank(spec.name)) specs.push_back(spec);
  std::vector<nn::TensorPart> parts = nn::parts_of(assembly.model->store, assembly.mesh.coord);
  std::erase_if(parts, [](const nn::TensorPart& part) { return !nn::is_low_rank(part.name); });
  checkpoint::load_parameters(source, parts, specs);
}

bool of_teacher(const std::string& parameter) { return parameter.starts_with(std::string(models::kTeacher) + "."); }

/// Unless `from` has it along.
void load_teacher(Assembly& assembly, const checkpoint::Checkpoint* from) {
  std::vector<layout::ParamSpec> specs;
  for (const layout::ParamSpec& spec : assembly.description.parameters)
    if (of_teacher(spec.name)) specs.push_back(spec);
  if (specs.empty() || assembly.teacher.empty() || (from && from->tensors().contains(specs.front().name))) return;
  const size_t prefix = std::string(models::kTeacher).size() + 1;
  std::vector<nn::TensorPart> parts = nn::parts_of(assembly.model->store, assembly.mesh.coord);
  std::erase_if(parts, [](const nn::TensorPart& part) { return !of_teacher(part.name); });
  for (nn::TensorPart& part : parts) part.name.erase(0, prefix);
  for (layout::ParamSpec& spec : specs) spec.name.erase(0, prefix);
  checkpoint::load_parameters(checkpoint::Checkpoint(assembly.teacher), parts, specs);
}

}  // namespace

checkpoint::Mismatch make_parameters(Assembly& assembly, bool gradients, const checkpoint::Checkpoint* from,
                                     int zero_stage, bool strict) {
  nn::ParamStore& store = assembly.model->store;
  nn::ParamStore::Allocate allocate;
  const comm::Comm& dp = assembly.mesh.dp;
  if (dp.size() > 1)
    allocate = [&assembly](int64_t count, at::ScalarType type) { return shared_zeros(assembly.mesh, count, type); };
  store.materialize(assembly.model->options.seed, gradients, allocate, 25 << 20,
                    nn::zero_sharding(zero_stage, dp.size(), dp.rank()), assembly.mesh.device);
  assembly.parameters = std::make_unique<optim::ParamGather>(assembly.mesh, store);
  if (!assembly.adapter.empty()) load_adapter(assembly);
  load_teacher(assembly, from);
  const std::vector<layout::ParamSpec>& specs = assembly.description.parameters;
  checkpoint::Mismatch mismatch;
  if (from) mismatch = checkpoint::load_parameters(*from, nn::parts_of(store, assembly.mesh.coord), specs, strict);
  if (assembly.adapter.empty()) {
    std::vector<layout::ParamSpec> begins = specs;
    std::erase_if(begins, [&](const layout::ParamSpec& spec) { return from && from->tensors().contains(spec.name); });
    nn::begin_magnitudes(store, assembly.mesh.coord, begins, assembly.mesh.world);
  }
  if (!from) return {};
  const auto lacks = [&](const layout::ParamSpec& spec) { return !spec.average_of.empty() && !from->tensors().contains(spec.name); };
  if (std::ranges::any_of(specs, lacks)) store.average(0);
  return mismatch;
}

void load_averages(const Assembly& assembly, const checkpoint::Checkpoint& from) {
  std::vector<nn::TensorPart> parts = nn::parts_of(assembly.model->store, assembly.mesh.coord);
  for (nn::TensorPart& part : parts) part.name += ".ema";
  std::erase_if(parts, [&](const nn::TensorPart& part) { return !from.tensors().contains(part.name); });
  if (std::ranges::none_of(from.tensors(), [](const auto& entry) { return entry.first.ends_with(".ema"); }))
    throw base::FormatError(fmt::format(
        "{}: holds no moving averages of the weights: the run kept none (optim.ema.decay), or the optimizer's files were "
        "left behind", from.path()));
  from.read_all(parts);
}

}  // namespace trireme::train
