#pragma once
// Optimizer: an update rule on segments. A segment is a piece of one parameter as flat memory
// together with its gradient and its state, so the same rule steps whole parameters and ZeRO shards
// of them, to the same bits. Which segments a rank steps is ShardedOptimizer's business.
//
// A rule that looks at each element alone is local. One that needs numbers of the whole parameter
// (LAMB's norms, Adafactor's means, Muon's matrix) is collective: it gets all segments of a rank at
// once and the WholeTensors that they are pieces of.

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/registry.h"
#include "trireme/config/run_config.h"
#include "trireme/kernels/update.h"
#include "trireme/nn/param_store.h"
#include "trireme/optim/whole_tensors.h"

namespace trireme::optim {

struct Segment {
  const nn::Param* param = nullptr;
  layout::Range flat;             // elements of the parameter's local slice
  at::Tensor data, grad;          // flat views of them, fp32 or fp64
  std::vector<at::Tensor> state;  // as the rule's states() says
  double weight_decay = 0;
  double lr_scale = 1;

  kernels::Piece piece() const;
};

/// A tensor that a rule keeps for a parameter, zero at first: an element for each of the
/// parameter's, laid out as they are, or a small tensor of its own shape that every rank keeps
/// whole.
struct State {
  std::string name;  // PyTorch's
  std::optional<layout::Shape> shape = {};
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual std::vector<State> states(const layout::ParamSpec& spec) const = 0;
  /// Names of all states that the rule keeps for any parameter.
  virtual std::vector<std::string> state_names() const = 0;
  virtual bool collective() const { return false; }
  /// `step` counts from 1; gradients are multiplied by `grad_scale` as they are read. The segments
  /// have one dtype. A collective rule gets all segments of the rank, others any part of them.
  virtual void step(std::span<const Segment> segments, double lr, int64_t step,
                    double grad_scale) const = 0;
};

using MakeOptimizer =
    std::function<std::unique_ptr<Optimizer>(const config::Optim& options, WholeTensors whole)>;
/// All rules by the name that optim.name gives them.
base::Registry<MakeOptimizer>& optimizers();

/// The rule that `options` names, each as PyTorch defines it (LAMB: as its paper does). ConfigError
/// for other names and for values outside of their range.
std::unique_ptr<Optimizer> make_optimizer(const config::Optim& options, WholeTensors whole = {});

}  // namespace trireme::optim
