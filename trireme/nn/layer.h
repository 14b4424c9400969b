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
  bool source = false;  // looks at the encoder's input alone: once is enough in generation
  // Tensors of the batch that this link, or the loss behind it, reads. Stages without any such link do not load them, so
  // all that read one say so, or none does.
  std::vector<std::string> inputs = {};
};

/// Numbers of counted items, one for each term of the loss. Most losses have one term: a plain number.
struct Counts : std::vector<int64_t> {
  Counts(int64_t one) : std::vector<int64_t>{one} {}
  Counts(std::initializer_list<int64_t> several) : std::vector<int64_t>(several) {}
};

/// On the last stage: for each term of the loss the sum over a micro-batch's counted items, fp64: a scalar, or
/// [loss_terms]. The loss is the sum of the terms' means over the global batch. Collective over tp.
struct LossFunction {
  std::function<at::Tensor(const State& out, const Batch& batch, const comm::Comm& tp)> of;
  /// Where a Context requests the loss, the chain's last layer leaves the first term's sum as State "loss" in place of what
  /// it predicts, and `of` takes that too.
  bool from_head = false;

  LossFunction() = default;
  template <class F>
  LossFunction(F function, bool made_by_head = false) : of(std::move(function)), from_head(made_by_head) {}
  at::Tensor operator()(const State& out, const Batch& batch, const comm::Comm& tp) const { return of(out, batch, tp); }
};

/// A tensor that a batch must hold to train on it.
struct BatchTensor {
  std::string name;
  int dims = 1;  // of one sample; -1: any number
};

struct ModelDef {
  std::vector<LayerDef> layers;
  Policy policy;
  std::vector<BatchTensor> trains_on = {};  // empty: not known
  LossFunction loss;
  /// The number of counted items of a micro-batch, by term, from the loader's tensors alone.
  std::function<Counts(const Batch& batch)> loss_weight;
  int loss_terms = 1;
  /// The loss is a function of all rows of a micro-batch, over all data ranks: each has as many rows, in every step.
  bool whole_batches = false;
  /// Where there are moving averages (Builder::average): what they keep of themselves after a step, when so much of the
  /// run is over (0 to 1).
  std::function<double(double over)> average_keeps = {};
  /// The State that enters the first layer is empty: layers read the Context's batch.
  int64_t vocab_size = 0, max_positions = 0;
  int64_t experts = 0;  // of each mixture; 0: there is none
  int heads = 0;
  bool generates = true;       // makes text token by token
  int64_t decoder_start = -1;  // of an encoder-decoder: the token with which generation begins; -1: a decoder
};

}  // namespace trireme::nn
