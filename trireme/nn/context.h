#pragma once
// Context: what a forward pass may know beside its State. Random: the run's random numbers by coordinate.
// WeightQueue: weight gradients that wait until the pipeline asks for them.

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trireme/nn/state.h"

namespace trireme::nn {

enum class Mode : uint8_t { train, eval };

/// Keys of random streams; the counter is a global coordinate, so masks do not depend on the layout.
struct Random {
  uint64_t seed = 0, step = 0;
  uint64_t key(uint64_t layer, uint64_t site) const;
};

/// Weight gradients in the order in which the input gradients were made.
class WeightQueue {
 public:
  void add(std::function<void()> work) { work_.push_back(std::move(work)); }
  /// Runs all of them without autograd.
  void drain();
  bool empty() const { return work_.empty(); }

 private:
  std::vector<std::function<void()>> work_;
};

/// Keys and values of earlier tokens, per layer: [batch, local heads, seen, head size]; and of the encoder's output.
struct KvCache {
  std::map<int, std::pair<at::Tensor, at::Tensor>> layers, cross;
  int64_t seen = 0;  // tokens already in every layer's cache
  /// Appends along the sequence and returns the whole.
  std::pair<at::Tensor, at::Tensor> append(int layer, const at::Tensor& key, const at::Tensor& value);
};

/// Asks the last layer of a chain for its loss in place of what it predicts (LossFunction::from_head).
struct LossRequest {
  /// What the loss's first term is multiplied by, where its backward pass follows at once; none where none follows.
  std::optional<double> factor = {};
};

struct Context {
  const Batch& batch;
  Mode mode = Mode::train;
  Random random = {};
  at::Tensor anchor = {};              // scalar that requires a gradient: the graph's root where inputs are integers
  WeightQueue* weight_queue = nullptr;  // null: weight gradients are made at once
  KvCache* cache = nullptr;
  std::optional<LossRequest> loss_request = {};  // none: outputs are wanted
  bool fuse = true;                  // fused kernels, or the plain operations that they stand for
  bool recompute_attention = false;  // its weights are made again in the backward pass instead of kept
  int64_t seq = batch.seq;  // positions of the residual stream at hand: of the source in an encoder

  /// The same for a residual stream of `positions`.
  Context over(int64_t positions) const {
    Context other = *this;
    other.seq = positions;
    return other;
  }
};

}  // namespace trireme::nn
