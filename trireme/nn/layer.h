#pragma once
// Layer: one link of a model's chain; its own autograd segment. ModelDef: a model as a value.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/comm.h"
#include "trireme/nn/context.h"
#include "trireme/nn/policy.h"
#include "trireme/nn/state.h"

namespace trireme::nn {

class Builder;

class Layer {
 public:
  virtual ~Layer() = default;
  virtual State forward(State in, const Context& context) = 0;
  /// The State that leaves for a batch of `shape`, given the one that enters (as this rank holds it).
  virtual StateSpec describe(const StateSpec& in, const BatchShape& shape) const {
    (void)shape;
    return in;
  }
  /// Forward floating point operations of the whole layer for one row of `seq` tokens, over all ranks.
  virtual double flops(int64_t seq) const {
    (void)seq;
    return 0;
  }
};

/// A link of the chain before it is built. Blocks are what pipelines distribute; the links before the first
/// block go to the first stage, those after the last one to the last.
struct LayerDef {
  std::string name;
  bool block = false;
  std::function<std::unique_ptr<Layer>(Builder&)> make;
};

struct ModelDef {
  std::vector<LayerDef> layers;
  Policy policy;
  /// On the last stage: the sum of the losses of a micro-batch's counted items, an fp64 scalar. Collective over tp.
  std::function<at::Tensor(const State& out, const Batch& batch, const comm::Comm& tp)> loss;
  /// The number of counted items of a micro-batch, from the loader's tensors alone.
  std::function<int64_t(const Batch& batch)> loss_weight;
  /// The State that enters the first layer is empty: layers read the Context's batch.
  int64_t vocab_size = 0, max_positions = 0;
  int heads = 0;
};

}  // namespace trireme::nn
