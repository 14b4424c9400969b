#pragma once
// Optimizer: an update rule on segments. A segment is a piece of one parameter as flat memory
// together with its gradient and its state, so the same rule steps whole parameters and ZeRO shards
// of them, to the same bits. Which segments a rank steps is ShardedOptimizer's business.

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/config/run_config.h"
#include "trireme/kernels/update.h"
#include "trireme/nn/param_store.h"

namespace trireme::optim {

struct Segment {
  const nn::Param* param = nullptr;
  layout::Range flat;             // elements of the parameter's local slice
  at::Tensor data, grad;          // flat views of them, fp32 or fp64
  std::vector<at::Tensor> state;  // as many as the optimizer has state names
  double weight_decay = 0;

  kernels::Piece piece() const;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// Hugging Face's and PyTorch's names of the state tensors, each of the parameter's size, zero at
  /// first.
  virtual const std::vector<std::string>& state_names() const = 0;
  /// Local. `step` counts from 1; gradients are multiplied by `grad_scale` as they are read. The
  /// segments have one dtype.
  virtual void step(std::span<const Segment> segments, double lr, int64_t step,
                    double grad_scale) const = 0;
};

/// adamw (Loshchilov and Hutter, 2019) or sgd with momentum, as PyTorch defines them. ConfigError
/// for other names and for values outside of their range.
std::unique_ptr<Optimizer> make_optimizer(const config::Optim& options);

/// The decay of a parameter: weight_decay_norm for weights and biases of normalisations (modules
/// named ln_*, or with "norm" in their name), weight_decay_bias for other biases, else
/// weight_decay.
double weight_decay_of(const std::string& parameter, const config::Optim& options);

}  // namespace trireme::optim
