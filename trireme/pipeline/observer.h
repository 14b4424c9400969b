#pragma once
// StepObserver: what a running step tells to whoever owns gradients and memory. The optimizer
// implements it: gradients are exchanged when they are complete, what is sharded is gathered before
// a layer and freed after it. Called on the rank's own thread, in the same order on all
// data-parallel ranks, also for micro-batches that this rank lacks.

#include <cstdint>

namespace trireme::pipeline {

enum class Pass : uint8_t {
  forward,
  backward,  // gradients of inputs and weights; a recomputed forward belongs to it
  inputs,    // gradients of inputs; those of the weights wait
  weights,   // the gradients that waited
};

/// Do parameters' gradients get contributions?
inline bool contributes(Pass pass) {
  return pass == Pass::backward || pass == Pass::weights;
}

class StepObserver {
 public:
  virtual ~StepObserver() = default;
  /// Chain link `layer` is about to run: its parameters must be there, and their gradients where
  /// the pass contributes.
  virtual void before_layer(int layer, Pass pass) { (void)layer, (void)pass; }
  virtual void after_layer(int layer, Pass pass) { (void)layer, (void)pass; }
  /// No layer runs any more.
  virtual void end_step() {}
};

}  // namespace trireme::pipeline
