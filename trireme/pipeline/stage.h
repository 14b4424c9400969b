#pragma once
// Stage: this rank's layers in a pipeline, run micro-batch by micro-batch. It knows nothing of
// schedules or messages.
//
// Each layer is its own autograd segment: its inputs are cut off from the layer before, so the
// backward pass is a plain loop over the layers in reverse, and recompute, gathering, freeing and
// counting all happen in that loop. What a micro-batch keeps lives from `forward` to `backward` (or
// to `weights`, where these gradients wait).

#include <map>
#include <optional>

#include "trireme/dist/world.h"
#include "trireme/nn/builder.h"
#include "trireme/pipeline/observer.h"

namespace trireme::pipeline {

// A last layer that is to make the loss (Context::loss_request) waits for its backward pass: it
// then runs once, with the loss's factor known, and what it predicts never outlives it. Nobody asks where weight gradients
// wait for W: its own would not.

/// What a forward pass keeps for the backward one.
enum class Keep : uint8_t {
  nothing,        // no backward follows
  graph,          // backward makes all gradients
  split_weights,  // backward makes those of inputs, `weights` the rest
};

struct StageOptions {
  /// Every k-th block of the chain keeps its inputs only and runs forward again before its
  /// backward; 0: none.
  int recompute_every = 0;
  /// Where given, so many blocks of this stage do that, its first ones, and no others.
  std::optional<int> recompute_blocks = {};
  /// Attention keeps its inputs only; what lies between them and its output is made again.
  bool recompute_attention = false;
};

class Stage {
 public:
  /// `model`, `mesh` and `observer` (may be null) outlive the stage.
  Stage(nn::Model& model, const dist::DeviceMesh& mesh, const StageOptions& options = {},
        StepObserver* observer = nullptr);

  /// Zeroes the gradients; `micro_batches` will contribute to them.
  void begin_step(int64_t micro_batches);
  /// InternalError when a contribution lacks, if gradients were made.
  void end_step(bool trained);

  /// Runs the layers of `chunk` (an index among this rank's chunks) on `in`; the State that leaves
  /// carries no graph. `context.batch` must live until the slot is freed. Collective over tp, as
  /// are the others.
  nn::State forward(int chunk, int micro_batch, nn::State in, const nn::Context& context,
                    Keep keep);
  /// The loss (sums over counted items, by term) of what the last chunk returned; none where its last layer waits.
  at::Tensor loss(int chunk, int micro_batch, const nn::State& out, const nn::Context& context);
  /// Gradients of the last chunk's outputs, each term of the loss weighted. Where the last layer waited, it runs now
  /// and `loss` is set.
  nn::State loss_gradients(int chunk, int micro_batch, const std::vector<double>& weights, at::Tensor& loss);
  /// Gradients of the chunk's inputs from those of its outputs; frees as it goes. A tensor that
  /// carries no gradient, or got none, is absent.
  nn::State backward(int chunk, int micro_batch, nn::State gradients);
  /// The weight gradients that `backward` left (Keep::split_weights).
  void weights(int chunk, int micro_batch);
  /// Tells the observer of the layers that `pass` (forward, backward, weights) would run for a
  /// micro-batch that this rank lacks: other data ranks may have it.
  void pass_over(int chunk, Pass pass, const nn::Context& context, Keep keep);
  /// Frees what the micro-batch keeps, in all chunks: it will have no backward pass.
  void drop(int micro_batch);

  /// Micro-batches of chunks that keep something now.
  int64_t live() const { return std::ssize(slots_); }

 private:
  struct Segment {
    nn::State in, out;
    bool recompute = false, waits = false;
  };
  struct Slot {
    nn::Context context;
    Keep keep;
    std::vector<Segment> layers = {};
    nn::State loss_in = {};
    at::Tensor loss = {};
    std::vector<nn::WeightQueue> weights = {};  // by layer
  };
  Slot& slot(int chunk, int micro_batch);
  nn::State run_layer(int chunk, size_t index, const nn::State& in, const nn::Context& context);
  bool recomputes(int chunk, size_t index) const;
  /// Does the layer run in its backward pass only?
  bool waits(int chunk, size_t index, const nn::Context& context, Keep keep) const;
  /// How many blocks of this stage come before chain link `layer`.
  int blocks_before(int layer) const;
  /// Do its weight gradients wait for `weights`?
  bool splits(int chunk, size_t index, Keep keep) const;
  void before(int chunk, size_t index, Pass pass);
  void after(int chunk, size_t index, Pass pass);

  nn::Model& model_;
  const dist::DeviceMesh& mesh_;
  StageOptions options_;
  StepObserver* observer_;
  at::Tensor anchor_;
  std::map<std::pair<int, int>, Slot> slots_;  // by chunk and micro-batch
};

}  // namespace trireme::pipeline
