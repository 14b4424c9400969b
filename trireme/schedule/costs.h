#pragma once
// Costs: how long actions and messages take and how much memory an activation holds. Any unit of time and memory will
// do; results come in the same ones.

#include <vector>

#include "trireme/schedule/schedule.h"

namespace trireme::schedule {

/// Of one chunk and one micro-batch.
struct ChunkCosts {
  double f = 1, i = 1, w = 1;  // time of forward, input gradient, weight gradient; a full backward takes i + w
  double activation = 1;       // memory held from the forward to W (or B)
  double working = 0;          // memory needed beyond that while B or I runs
};

struct Costs {
  double f = 1, i = 1, w = 1;  // time of a whole stage; a chunk takes its share
  double comm = 0;             // time of one message between two ranks, whatever the number of chunks
  /// Where chunks differ (the embedding and the head make the ends dearer): one entry a global chunk, in place of f, i
  /// and w. Then memory counts in the unit of `activation`; else in activations of one whole stage.
  std::vector<ChunkCosts> chunks = {};
};

/// The costs of one chunk of a schedule; ConfigError where `costs.chunks` has another number of entries.
ChunkCosts costs_of(const Costs& costs, const Schedule& schedule, int chunk);

/// The same chunk when its forward runs once more in its backward: the share `kept` of the activation is held, the rest
/// is there while the backward runs; weight gradients are made with it, so nothing is left to W.
ChunkCosts recomputed(const ChunkCosts& costs, double kept);

/// ConfigError unless all times and sizes are finite and at least 0.
void check(const Costs& costs);

}  // namespace trireme::schedule
