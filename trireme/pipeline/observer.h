#pragma once
// StepObserver: what a running step tells to whoever owns gradients and memory. The optimizer implements it:
// buckets are reduced when they are complete, sharded parameters are gathered before a layer and freed after it.
// Called on the rank's own thread, in the same order on all data-parallel ranks.

#include "trireme/nn/param_store.h"

namespace trireme::pipeline {

enum class Pass : uint8_t { forward, backward };

class StepObserver {
 public:
  virtual ~StepObserver() = default;
  /// Chain link `layer` is about to run: its parameters must be there. A recomputed forward belongs to the backward.
  virtual void before_layer(int layer, Pass pass) { (void)layer, (void)pass; }
  virtual void after_layer(int layer, Pass pass) { (void)layer, (void)pass; }
  /// The bucket's gradient is complete on this rank for this step. Called once a step for each bucket, in the
  /// store's order, also where a rank had no micro-batch.
  virtual void contribution_landed(nn::Bucket& bucket) { (void)bucket; }
};

}  // namespace trireme::pipeline
