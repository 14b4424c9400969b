#pragma once
// The layout report: what a run would look like on its ranks, without making a tensor.

#include <string>

#include "trireme/config/run_config.h"
#include "trireme/layout/model_description.h"
#include "trireme/layout/mesh.h"

namespace trireme::train {

/// Bytes that a rank's parameters, gradients and optimizer state take (activations come on top). `working` is what
/// ZeRO stages 2 and 3 make whole while layers run: at most two neighbours at a time.
struct RankMemory {
  int64_t parameters = 0, gradients = 0, optimizer = 0, working = 0;
  int64_t total() const { return parameters + gradients + optimizer + working; }
};
/// Pure. Frozen parameters have no gradients and no state. Data ranks split the others' states from ZeRO stage 1 on
/// (but for small ones that every rank keeps whole), gradients from 2 on, parameters with 3.
RankMemory rank_memory(const layout::ModelDescription& model, const layout::Mesh& mesh, const layout::Coord& coord,
                       const config::Optim& optim, int zero_stage);

/// Bytes that each data rank contributes to the exchange over dp in a step: sums of gradients (all-reduce with ZeRO 0,
/// else reduce-scatter), and gathers of parameters.
struct StepTraffic {
  int64_t gradients = 0, parameters = 0;
};
/// Pure. With ZeRO 2 and 3 a layer's gradients are exchanged once a micro-batch; with 3 its parameters are gathered for
/// the forward and the backward pass of each (at the turn from one to the other they stay).
StepTraffic step_traffic(const layout::ModelDescription& model, const layout::Mesh& mesh, const layout::Coord& coord,
                         const config::Optim& optim, int zero_stage, int64_t micro_batches);

/// A table for a person: degrees, batch, and each stage's layers, parameters and memory per rank.
std::string layout_report(const config::RunConfig& config, const layout::ModelDescription& model,
                          const layout::Mesh& mesh, const config::BatchPlan& plan);

}  // namespace trireme::train
