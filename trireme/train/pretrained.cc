#include "trireme/train/pretrained.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <map>

#include "trireme/base/error.h"
#include "trireme/checkpoint/adapter.h"
#include "trireme/checkpoint/convert.h"
#include "trireme/checkpoint/folder.h"
#include "trireme/checkpoint/index.h"
#include "trireme/checkpoint/save.h"
#include "trireme/checkpoint/together.h"
#include "trireme/dist/device.h"
#include "trireme/dist/redistribute.h"
#include "trireme/models/registry.h"
#include "trireme/models/vocabulary.h"
#include "trireme/nn/low_rank.h"
#include "trireme/nn/tensor_part.h"
#include "trireme/optim/groups.h"
#include "trireme/schedule/generators.h"

namespace trireme::train {
namespace {

using layout::Axis;

layout::Mesh mesh_of(const ParallelOptions& options, int ranks) {
  const int model = options.tensor_parallel_size * options.pipeline_parallel_size;
  if (options.tensor_parallel_size < 1 || options.pipeline_parallel_size < 1 || ranks % model != 0) {
    throw base::ConfigError(
        fmt::format("{} ranks cannot be shared out as tensor_parallel_size {} x pipeline_parallel_size {} x data ranks; "
                    "start a multiple of {}",
                    ranks, options.tensor_parallel_size, options.pipeline_parallel_size, std::max(1, model)));
  }
  return layout::Mesh({.pp = options.pipeline_parallel_size, .dp = ranks / model, .tp = options.tensor_parallel_size});
}

ParallelModel lay_out(base::Json tree, const checkpoint::Checkpoint* source, const ParallelOptions& options,
                      dist::World& world) {
  if (source) models::check_begins_with(options.config, tree, source->path());
  for (const auto& [key, value] : options.config.items()) tree[key] = value;
  const Placement placement{
      .mesh = mesh_of(options, world.size()),
      .schedule = schedule::generate(options.schedule, {.ranks = options.pipeline_parallel_size,
                                                        .micro_batches = static_cast<int>(options.micro_batches)}),
      .options = {.dtype = options.dtype, .sequence_parallel = options.sequence_parallel,
                  .expert_axis = options.expert_axis, .seed = options.seed, .fuse = options.fuse}};
  ParallelModel model{
      .assembly = assemble(tree, placement, 1, world), .config = models::resolve_model(tree), .options = options};
  if (options.gradient_checkpointing) model.stage.recompute_every = 1;
  config::Optim frozen;
  for (const std::string& pattern : options.freeze) frozen.groups.push_back({.pattern = pattern, .freeze = true});
  optim::check_groups(model.assembly->description.parameters, frozen);
  optim::freeze(model.assembly->model->store, frozen);
  model.mismatch =
      make_parameters(*model.assembly, options.gradients, source, options.zero_stage, options.strict);
  if (source) model.source = source->path();
  return model;
}

/// Copies the elements that two parts of a tensor share.
void copy_shared(const nn::TensorPart& from, nn::TensorPart& to) {
  const at::Tensor source = dist::to_host(from.data).contiguous();
  at::Tensor target = dist::to_host(to.data).clone();
  const auto size = static_cast<int64_t>(source.element_size());
  const auto* read = static_cast<const std::byte*>(source.const_data_ptr());
  auto* write = static_cast<std::byte*>(target.mutable_data_ptr());
  checkpoint::for_each_shared(from.slice, from.flat, to.slice, to.flat, to.global_shape, [&](const layout::Overlap& run) {
    std::memcpy(write + run.to * size, read + run.from * size, static_cast<size_t>(run.count * size));
  });
  to.data.copy_(target.view(to.data.sizes()));
}

/// All of what tensor ranks split. Collective over those, where they do.
at::Tensor whole_of(const nn::Param& param, const comm::Comm& tp) {
  const layout::Sbp place = param.spec.layout.tp;
  return place.is_split() ? dist::all_gather(param.data, tp, place.dim, param.spec.shape[static_cast<size_t>(place.dim)]) : param.data;
}

std::map<std::string, nn::TensorPart> parts_by_name(const Assembly& assembly) {
  std::map<std::string, nn::TensorPart> out;
  for (nn::TensorPart& part : nn::parts_of(assembly.model->store, assembly.mesh.coord)) out.emplace(part.name, std::move(part));
  return out;
}

void remove_quietly(const std::string& folder) {
  std::error_code ignored;
  if (!folder.empty()) std::filesystem::remove_all(folder, ignored);
}

void write_oslo(const Assembly& own, const std::string& whole, const std::string& folder) {
  layout::ModelDescription description = own.description;
  std::erase_if(description.parameters, [](const layout::ParamSpec& spec) { return nn::is_low_rank(spec.name); });
  const layout::Mesh& mesh = own.mesh.mesh;
  checkpoint::convert_to_oslo(checkpoint::Checkpoint(whole), folder, description, mesh.size(Axis::tp), mesh.size(Axis::pp), {});
}

/// Makes `folder` of what stands whole in `whole`. An adapter goes into the weights: these formats have no place for it.
void finish(const Assembly& own, const std::string& whole, const std::string& folder, SaveFormat format) {
  const bool adapted = own.model->options.low_rank.rank > 0;
  if (format == SaveFormat::safetensors && !adapted) return checkpoint::commit_folder(whole, folder);
  if (format == SaveFormat::oslo && !adapted) return write_oslo(own, whole, folder);
  const checkpoint::ConvertOptions options{.pickled = format == SaveFormat::bin};
  const checkpoint::Checkpoint parts(whole);
  if (!adapted) {
    checkpoint::convert_to_hf(parts, folder, options);
  } else if (format != SaveFormat::oslo) {
    checkpoint::merge_own_adapter(parts, folder, options);
  } else {
    const std::string merged = whole + ".weights";
    const auto removal = std::shared_ptr<void>(nullptr, [&](void*) { remove_quietly(merged); });
    checkpoint::merge_own_adapter(parts, merged, options);
    write_oslo(own, merged, folder);
  }
}

}  // namespace

ParallelModel from_pretrained(const std::string& name_or_folder, const ParallelOptions& options, dist::World& world) {
  const layout::Mesh mesh = mesh_of(options, world.size());
  const checkpoint::Checkpoint source(name_or_folder, [&](const base::Json& config) {
    return describe(config, forward_placement(mesh, options.dtype, 1), 1);
  });
  return lay_out(source.model_config(), &source, options, world);
}

ParallelModel from_config(const base::Json& config, const ParallelOptions& options, dist::World& world) {
  return lay_out(config, nullptr, options, world);
}

void resize_token_embeddings(ParallelModel& model, int64_t size, dist::World& world) {
  ParallelOptions options = model.options;
  options.config = base::Json::object();  // whose keys the model's own have taken
  ParallelModel next = lay_out(models::with_vocabulary(model.config, size), nullptr, options, world);
  next.mismatch = model.mismatch, next.source = model.source;
  const auto resizings = checkpoint::resizings(model.assembly->description.parameters, next.assembly->description.parameters);
  std::map<std::string, nn::TensorPart> to = parts_by_name(*next.assembly);
  // Layer by layer, since ZeRO 3 has only those that run whole.
  Assembly& own = *model.assembly;
  for (const std::vector<int>& chunk : own.model->layer_indices)
    for (int layer : chunk) {
      own.parameters->before_layer(layer, pipeline::Pass::forward);
      for (const nn::Param* param : own.model->store.params()) {
        if (param->layers.front() != layer) continue;
        nn::TensorPart from{.name = param->spec.name,
                            .global_shape = param->spec.shape,
                            .slice = param->slice,
                            .flat = {0, param->slice.count()},
                            .data = param->data};
        if (const auto change = resizings.find(from.name); change != resizings.end()) {
          from.data = change->second.apply(whole_of(*param, own.mesh.tp));
          from.global_shape = change->second.after;
          from.slice = layout::whole(from.global_shape);
          from.flat = {0, from.slice.count()};
        }
        if (const auto has = to.find(from.name); has != to.end()) copy_shared(from, has->second);
      }
    }
  own.parameters->end_step();
  model = std::move(next);
}

void save_pretrained(const ParallelModel& model, const std::string& given, dist::World& world, SaveFormat format) {
  const std::string folder = given.substr(0, given.find_last_not_of('/') + 1);
  const Assembly& own = *model.assembly;
  const comm::Comm& ranks = own.mesh.world;
  std::string whole;  // rank 0's
  checkpoint::together(ranks, [&] {
    if (std::filesystem::exists(folder))
      throw base::ConfigError(folder + ": is there already; give a new folder, or remove it");
    if (world.rank() == 0) whole = checkpoint::begin_folder(folder + ".merged");
    return std::string();
  });
  try {
    checkpoint::SaveRequest request;
    request.parameters = nn::parts_of(own.model->store, own.mesh.coord);
    checkpoint::Manifest manifest;
    checkpoint::save_merged(request, ranks, whole, false, manifest);
    checkpoint::together(ranks, [&] {
      if (world.rank() == 0) {
        checkpoint::write_model_files(whole, model.config, model.source);
        finish(own, whole, folder, format);
      }
      return std::string();
    });
  } catch (...) {
    remove_quietly(whole);
    throw;
  }
  remove_quietly(whole);
}

}  // namespace trireme::train
