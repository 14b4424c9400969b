#pragma once
// split_backward: the pass that turns full backwards into I and W (Qi et al., Zero Bubble Pipeline Parallelism, 2023).
// I keeps B's place, because other ranks wait for it; W waits until its rank would be idle, or until its activation's
// memory is needed.

#include "trireme/schedule/costs.h"

namespace trireme::schedule {

struct SplitOptions {
  /// Most chunk activations that each rank may hold: at least what the order of forwards and backwards demands.
  std::vector<int> memory = {};
  /// A W starts in front of an action that is known to become possible soon only where this share of the W fits in.
  double patience = 0.5;
  /// An idle rank may run later forwards of its first chunk early, as far as memory allows.
  bool early_forwards = false;
};

/// `order` holds F and B alone and is valid. The order of F and I stays (but for early forwards); `costs` decide where
/// the idle time is. ConfigError where the order demands more memory than allowed.
Schedule split_backward(const Schedule& order, const Costs& costs, const SplitOptions& options);

/// Most chunk activations that each rank must hold to run an order of F and B (or of F, I and W).
std::vector<int> memory_of(const Schedule& order);
/// Does every rank of the order get along with its memory?
bool fits(const Schedule& order, const std::vector<int>& memory);

}  // namespace trireme::schedule
