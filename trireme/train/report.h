#pragma once
// The layout report: what a run would look like on its ranks, without making a tensor.

#include <string>

#include "trireme/config/run_config.h"
#include "trireme/layout/model_description.h"
#include "trireme/layout/mesh.h"

namespace trireme::train {

/// Bytes that a rank's parameters, gradients and optimizer state take (activations come on top).
struct RankMemory {
  int64_t parameters = 0, gradients = 0, optimizer = 0;
  int64_t total() const { return parameters + gradients + optimizer; }
};
/// Pure. Frozen parameters have no gradients and no state; from ZeRO stage 1 on the others' states are split over dp,
/// but for small ones that every rank keeps whole.
RankMemory rank_memory(const layout::ModelDescription& model, const layout::Mesh& mesh, const layout::Coord& coord,
                       const config::Optim& optim, int zero_stage);

/// A table for a person: degrees, batch, and each stage's layers, parameters and memory per rank.
std::string layout_report(const config::RunConfig& config, const layout::ModelDescription& model,
                          const layout::Mesh& mesh, const config::BatchPlan& plan);

}  // namespace trireme::train
