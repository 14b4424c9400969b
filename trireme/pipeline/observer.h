#pragma once
// StepObserver: what a running step tells to whoever owns gradients and memory. The optimizer
// implements it: buckets are reduced when they are complete, sharded parameters are gathered before
// a layer and freed after it. Called on the rank's own thread, in the same order on all
// data-parallel ranks.

#include <cstdint>

namespace trireme::pipeline {

enum class Pass : uint8_t { forward, backward };

class StepObserver {
 public:
  virtual ~StepObserver() = default;
  /// Chain link `layer` is about to run: its parameters must be there. A recomputed forward belongs
  /// to the backward.
  virtual void before_layer(int layer, Pass pass) { (void)layer, (void)pass; }
  virtual void after_layer(int layer, Pass pass) { (void)layer, (void)pass; }
  /// Some parameters' gradients got contributions: after a layer's backward pass, and after weight
  /// gradients that had waited.
  virtual void contributions_landed() {}
};

}  // namespace trireme::pipeline
