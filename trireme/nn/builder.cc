#include "trireme/nn/builder.h"

#include <set>

#include "trireme/base/error.h"
#include "trireme/layout/stage_manager.h"

namespace trireme::nn {

using layout::Sbp;

Builder::Builder(const dist::DeviceMesh& mesh, const Policy& policy, const BuildOptions& options, ParamStore& store,
                 const std::map<std::string, std::vector<int>>& stages_of_param)
    : mesh_(&mesh), policy_(&policy), options_(&options), store_(&store), stages_of_param_(&stages_of_param) {}

Builder Builder::operator/(const std::string& name) const {
  Builder inner = *this;
  inner.scope_ += (scope_.empty() ? "" : ".") + name;
  return inner;
}

Builder Builder::at_layer(int index) const {
  Builder inner = *this;
  inner.layer_index_ = index;
  return inner;
}

Builder Builder::whole() const {
  Builder inner = *this;
  inner.whole_ = true;
  return inner;
}

Builder Builder::average(const std::string& prefix) const {
  Builder inner = *this;
  inner.prefix_ = prefix;
  inner.averages_ = true;
  return inner;
}

Builder Builder::companion(const std::string& prefix, const Policy& policy) const {
  Builder inner = *this;
  inner.prefix_ = prefix;
  inner.policy_ = &policy;
  return inner;
}

Builder Builder::on_data_rank(int rank) const {
  Builder inner = *this;
  inner.data_rank_ = rank;
  return inner;
}

Param* Builder::param(const std::string& name, const layout::Shape& shape, layout::Init init, Sbp tp,
                      std::vector<int64_t> fused, int64_t granularity) const {
  layout::ParamSpec spec{.name = scope_.empty() ? name : scope_ + "." + name,
                         .shape = shape,
                         .dtype = options_->dtype,
                         .kind = layout::ParamKind::parameter,
                         .init = init,
                         .layout = {.stages = {mesh_->coord.pp}, .dp = Sbp::replicated(), .tp = tp},
                         .fused = std::move(fused),
                         .granularity = granularity};
  if (!prefix_.empty()) spec.kind = layout::ParamKind::buffer;
  if (averages_) spec.average_of = spec.name;
  return declare(std::move(spec));
}

Param* Builder::buffer(const std::string& name, const layout::Shape& shape, layout::Init init, Sbp tp) const {
  return declare({.name = scope_.empty() ? name : scope_ + "." + name,
                  .shape = shape,
                  .dtype = options_->dtype,
                  .kind = layout::ParamKind::buffer,
                  .init = init,
                  .layout = {.stages = {mesh_->coord.pp}, .dp = Sbp::replicated(), .tp = tp}});
}

Param* Builder::declare(layout::ParamSpec spec) const {
  if (!prefix_.empty()) spec.name = prefix_ + "." + spec.name;
  spec.layout.data_rank = data_rank_;
  if (auto it = stages_of_param_->find(spec.name); it != stages_of_param_->end()) spec.layout.stages = it->second;
  return store_->declare(spec, layout::local_slice(spec, mesh_->mesh, mesh_->coord), layer_index_);
}

Sbp Builder::stream_param() const { return stream().is_split() ? Sbp::replicated() : Sbp::invariant(); }

Sbp Builder::stream() const {
  const bool split = options_->sequence_parallel && !whole_ && mesh_->mesh.size(layout::Axis::tp) > 1;
  return split ? Sbp::split(1) : Sbp::invariant();
}

std::vector<int> chunk_of_layers(const ModelDef& def, const std::vector<int>& blocks_per_chunk) {
  std::vector<int> chunk_of_block;
  for (size_t c = 0; c < blocks_per_chunk.size(); ++c)
    chunk_of_block.insert(chunk_of_block.end(), blocks_per_chunk[c], static_cast<int>(c));
  int blocks = 0;
  for (const LayerDef& layer : def.layers) blocks += layer.block;
  base::check(blocks == static_cast<int>(chunk_of_block.size()), "{} blocks are distributed as {}", blocks,
              chunk_of_block.size());
  std::vector<int> chunks;
  int seen = 0;
  for (const LayerDef& layer : def.layers) {
    if (layer.block) {
      chunks.push_back(chunk_of_block[seen++]);
    } else {
      chunks.push_back(seen == 0 ? 0 : seen == blocks ? static_cast<int>(blocks_per_chunk.size()) - 1 : chunk_of_block[seen]);
    }
  }
  return chunks;
}

namespace {

struct Declared {
  std::vector<std::unique_ptr<Layer>> layers;
  std::vector<std::vector<std::string>> names;  // of the parameters each layer uses
  std::map<std::string, std::vector<int>> stages;
  ParamStore store;
};

// Declares the whole chain as it would lie on this rank; no memory is taken.
Declared declare_all(const ModelDef& def, const dist::DeviceMesh& mesh, const BuildOptions& options,
                     const std::vector<int>& chunk_of_layer, const std::vector<int>& rank_of_chunk) {
  Declared all;
  const std::map<std::string, std::vector<int>> none;
  std::map<std::string, std::set<int>> stages;
  for (size_t i = 0; i < def.layers.size(); ++i) {
    ParamStore own;
    Builder builder = Builder(mesh, def.policy, options, own, none).at_layer(static_cast<int>(i));
    def.layers[i].make(builder);
    all.names.emplace_back();
    for (Param* param : own.params()) {
      all.names.back().push_back(param->spec.name);
      stages[param->spec.name].insert(rank_of_chunk[chunk_of_layer[i]]);
    }
  }
  for (const auto& [name, set] : stages) all.stages[name].assign(set.begin(), set.end());
  for (size_t i = 0; i < def.layers.size(); ++i) {
    Builder builder = Builder(mesh, def.policy, options, all.store, all.stages).at_layer(static_cast<int>(i));
    all.layers.push_back(def.layers[i].make(builder));
  }
  return all;
}

}  // namespace

std::unique_ptr<Model> build_model(ModelDef def, const dist::DeviceMesh& mesh, const BuildOptions& options,
                                   const std::vector<int>& blocks_per_chunk, const std::vector<int>& rank_of_chunk) {
  auto model = std::make_unique<Model>();
  // The layers keep pointers to policy and options, so they are given the model's own.
  model->def = std::move(def);
  model->options = options;
  model->options.fuse = options.fuse && mesh.device.is_cpu();  // whose kernels they are
  std::vector<int> chunk_of_layer = chunk_of_layers(model->def, blocks_per_chunk);
  Declared all = declare_all(model->def, mesh, model->options, chunk_of_layer, rank_of_chunk);
  model->layers_per_chunk.assign(blocks_per_chunk.size(), 0);
  for (int chunk : chunk_of_layer) ++model->layers_per_chunk[chunk];
  Builder root(mesh, model->def.policy, model->options, model->store, all.stages);
  for (size_t c = 0, layer = 0; c < blocks_per_chunk.size(); layer += model->layers_per_chunk[c++]) {
    if (rank_of_chunk[c] != mesh.coord.pp) continue;
    auto& chunk = model->chunks.emplace_back();
    auto& indices = model->layer_indices.emplace_back();
    for (int i = 0; i < model->layers_per_chunk[c]; ++i) {
      int index = static_cast<int>(layer) + i;
      Builder builder = root.at_layer(index);
      chunk.push_back(model->def.layers[index].make(builder));
      indices.push_back(index);
    }
  }
  model->outline = std::move(all.layers);
  return model;
}

StateSpec Model::entering(int layer, const BatchShape& shape) const {
  StateSpec spec;
  for (int i = 0; i < layer; ++i) spec = outline[i]->describe(spec, shape);
  return spec;
}

std::set<std::string> Model::foreign_inputs() const {
  std::set<std::string> own, foreign;
  for (const std::vector<int>& chunk : layer_indices)
    for (int i : chunk) own.insert(def.layers[i].inputs.begin(), def.layers[i].inputs.end());
  for (const LayerDef& link : def.layers)
    for (const std::string& name : link.inputs)
      if (!own.contains(name)) foreign.insert(name);
  return foreign;
}

void Model::average(double over) {
  if (def.average_keeps) store.average(def.average_keeps(over));
}

layout::ModelDescription describe(const ModelDef& def, const layout::Mesh& mesh, const BuildOptions& options,
                                  const std::vector<int>& blocks_per_chunk, const std::vector<int>& rank_of_chunk,
                                  int64_t seq) {
  std::vector<int> chunk_of_layer = chunk_of_layers(def, blocks_per_chunk);
  dist::DeviceMesh origin;
  origin.mesh = mesh;
  Declared all = declare_all(def, origin, options, chunk_of_layer, rank_of_chunk);
  layout::ModelDescription description;
  description.layers_per_stage.assign(mesh.size(layout::Axis::pp), 0);
  for (size_t i = 0; i < def.layers.size(); ++i) {
    description.layers.push_back({.name = def.layers[i].name, .block = def.layers[i].block, .source = def.layers[i].source,
                                  .flops = all.layers[i]->flops(seq), .parameters = all.names[i]});
    if (def.layers[i].block) ++description.layers_per_stage[rank_of_chunk[chunk_of_layer[i]]];
  }
  for (Param* param : all.store.params()) description.parameters.push_back(param->spec);
  return description;
}

}  // namespace trireme::nn
