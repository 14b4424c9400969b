#pragma once
// Builder: what a layer is constructed with. It knows the scope (name prefix), the policy and this rank's place,
// declares parameters in the ParamStore and hands out the local slices. Layers never see ranks or stages.

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "trireme/dist/world.h"
#include "trireme/layout/model_description.h"
#include "trireme/nn/layer.h"
#include "trireme/nn/low_rank.h"
#include "trireme/nn/param_store.h"

namespace trireme::nn {

/// What is the same for every layer of a model on this rank.
struct BuildOptions {
  base::DType dtype = base::DType::f32;
  bool sequence_parallel = false;
  layout::Axis expert_axis = layout::Axis::tp;  // tp splits every expert; dp deals out whole ones among data ranks
  uint64_t seed = 0;
  bool fuse = true;  // Context::fuse, and a loss made with the head's scores
  LowRank low_rank = {};
};

class Builder {
 public:
  Builder(const dist::DeviceMesh& mesh, const Policy& policy, const BuildOptions& options, ParamStore& store,
          const std::map<std::string, std::vector<int>>& stages_of_param);

  /// The same builder with `name` appended to the scope: b / "attn" / "c_attn".
  Builder operator/(const std::string& name) const;
  /// The builder of chain link `index`.
  Builder at_layer(int index) const;
  /// The same off the residual stream: for layers whose input and output every rank of tp holds whole.
  Builder whole() const;
  /// The same for the moving average of what this one declares: what its parameters become are buffers of the same
  /// initial values under `prefix`, which ParamStore::average moves. Layers that it makes run without gradients.
  Builder average(const std::string& prefix) const;
  /// The same for a model that goes along and is never trained: its parameters are buffers under `prefix`, laid out by its
  /// own `policy`, which outlives the layers. They run without gradients too.
  Builder companion(const std::string& prefix, const Policy& policy) const;
  /// The same for what data rank `rank` alone holds. Nobody touches those parameters on another one.
  Builder on_data_rank(int rank) const;
  const std::string& scope() const { return scope_; }
  int layer_index() const { return layer_index_; }

  /// Declares `scope.name`. `tp` is its place on the tensor axis.
  Param* param(const std::string& name, const layout::Shape& shape, layout::Init init, layout::Sbp tp,
               std::vector<int64_t> fused = {}, int64_t granularity = 1) const;
  /// Declares the buffer `scope.name` (layout::ParamKind).
  Param* buffer(const std::string& name, const layout::Shape& shape, layout::Init init,
                layout::Sbp tp = layout::Sbp::invariant()) const;
  /// Place of a parameter that touches the residual stream: replicated when the stream is split, else invariant.
  layout::Sbp stream_param() const;
  /// Place of the residual stream [batch, seq, hidden] on tp: invariant, or split(1).
  layout::Sbp stream() const;

  Rule rule() const { return find_rule(*policy_, scope_); }
  const comm::Comm& tp() const { return mesh_->tp; }
  /// For what is taken over the rows of all data ranks (ModelDef::whole_batches), and for experts among them.
  const comm::Comm& dp() const { return mesh_->dp; }
  /// Of the layout, also where there is no communication yet.
  int dp_ranks() const { return mesh_->mesh.size(layout::Axis::dp); }
  int dp_rank() const { return mesh_->coord.dp; }
  int tp_ranks() const { return mesh_->mesh.size(layout::Axis::tp); }
  int tp_rank() const { return mesh_->coord.tp; }
  const BuildOptions& options() const { return *options_; }
  /// Where parameters and activations are.
  c10::Device device() const { return mesh_->device; }

 private:
  Param* declare(layout::ParamSpec spec) const;

  const dist::DeviceMesh* mesh_;
  const Policy* policy_;
  const BuildOptions* options_;
  ParamStore* store_;
  const std::map<std::string, std::vector<int>>* stages_of_param_;
  std::string scope_, prefix_;  // prefix_: of a companion; none: parameters are ordinary ones
  bool averages_ = false;
  int layer_index_ = 0;
  std::optional<int> data_rank_ = {};
  bool whole_ = false;
};

/// This rank's part of a model: the chunks of layers it holds, and their parameters (declared, not yet
/// materialized). Not collective.
struct Model {
  ModelDef def;
  BuildOptions options;
  std::vector<int> layers_per_chunk;                                 // blocks and their neighbours, whole chain
  std::vector<std::vector<std::unique_ptr<Layer>>> chunks;           // this rank's
  std::vector<std::vector<int>> layer_indices;                       // chain index of each layer
  std::vector<std::unique_ptr<Layer>> outline;                       // the whole chain; only describes
  ParamStore store;

  /// The State that enters chain link `layer` for a micro-batch of `shape`: what travels along an edge.
  StateSpec entering(int layer, const BatchShape& shape) const;
  /// Tensors of the batch that only links on other stages read.
  std::set<std::string> foreign_inputs() const;
  /// Moves the moving averages, if there are any, after a step; `over` is how much of the run is (0 to 1). Local.
  void average(double over);
};

/// The chunk of each link of the chain: blocks as counted, the links before the first block with it, those after the
/// last one with that, others with the block that follows.
std::vector<int> chunk_of_layers(const ModelDef& def, const std::vector<int>& blocks_per_chunk);

/// Builds the layers of this rank's stage. `blocks_per_chunk` is one count per global chunk; chunk c lies on
/// stage rank_of_chunk[c].
std::unique_ptr<Model> build_model(ModelDef def, const dist::DeviceMesh& mesh, const BuildOptions& options,
                                   const std::vector<int>& blocks_per_chunk, const std::vector<int>& rank_of_chunk);

/// The whole model without memory: every parameter with stages and placement, layers, FLOPs.
layout::ModelDescription describe(const ModelDef& def, const layout::Mesh& mesh, const BuildOptions& options,
                                  const std::vector<int>& blocks_per_chunk, const std::vector<int>& rank_of_chunk,
                                  int64_t seq);

}  // namespace trireme::nn
