#pragma once
// The norm of all gradients together and the factor that keeps it in bounds. Every distinct element
// counts once, on one rank, whatever the layout: see counts_for_norm.

#include <optional>
#include <span>
#include <string>

#include "trireme/comm/comm.h"
#include "trireme/layout/mesh.h"
#include "trireme/optim/optimizers.h"

namespace trireme::optim {

/// Do this rank's elements of a parameter count (those in its data shard)? On tensor ranks where
/// the parameter is not split, and among the holders of a tie, the first one's do.
bool counts_for_norm(const layout::ParamSpec& spec, const layout::Coord& coord);

/// The norm of kind `type` (1, 2 or infinity) over the elements that every rank passes. Sums run in
/// double. NaN on every rank where an element of any rank is not finite, among those in `copies` too:
/// what another rank counts. Collective over the world: one all-reduce of two numbers. ConfigError
/// for another type.
double total_norm(std::span<const Segment> counted, std::span<const Segment> copies, double type,
                  const comm::Comm& world);

/// The name of a parameter whose gradient is not finite: the first in the order of the segments on the
/// last of the `stages` that has one; empty where all are finite. Collective over the world.
std::string first_not_finite(std::span<const Segment> segments, int stage, const comm::Comm& world);

/// min(1, max_norm / (norm + 1e-6)), as PyTorch clips; 1 without a bound.
double clip_factor(double norm, std::optional<double> max_norm);

}  // namespace trireme::optim
