#pragma once
// Cell: one point of GPT-2's parity grid. Each rank trains the same tiny model on the same data for a few steps,
// whatever the layout, and hands over what it holds.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/shards.h"
#include "trireme/config/run_config.h"
#include "trireme/dist/world.h"

namespace trireme::test {

/// Mistakes that a grid must notice, made in the test's own code around the library.
enum class Fault {
  none, dropped_reduce, doubled_tie, wrong_loss_scale, swapped_micro_batches, shifted_dropout,
  dropped_scatter,  // ZeRO 2 and 3: a layer's gradients of one micro-batch
  stale_gather,     // ZeRO 3: a layer's parameters stay those of the first step
};

struct Cell {
  int dp = 1, tp = 1, pp = 1;
  std::string schedule = "1f1b";
  int zero = 0;
  bool sequence_parallel = false;
  std::string dtype = "fp64", optimizer = "adamw";  // nesterov: sgd with it
  bool tied = true;
  int64_t global_batch = 8;
  int recompute_every = 0;
  std::optional<int> recompute_blocks = {};
  bool recompute_attention = false;
  bool fuse = true;
  std::optional<std::string> offload = {};  // folder of the optimizer's state
  int64_t steps = 3;
  double loss_scale = 1;
  std::vector<config::ParamGroup> groups = {};
  int ranks() const { return dp * tp * pp; }
  std::string name() const;
};

struct CellResult {
  std::vector<double> losses;  // of every step
  Tensors gradients;           // whole, of the first step
  Tensors parameters;          // whole, after the last; masters where there are
  double grad_norm = 0;        // of the first step
  std::vector<uint64_t> digests;  // per rank: of losses, gradients and parameters, bit for bit
};

inline constexpr double kCellLr = 1e-2;

/// One rank's share; collective over the world. Adds what the rank holds to the gathered tensors.
struct RankResult {
  std::vector<double> losses;
  double grad_norm = 0;
  uint64_t digest = 0;
};
RankResult run_rank(const Cell& cell, dist::World& world, Gathered* gradients, Gathered* parameters,
                    Fault fault = Fault::none);

/// How ranks are started.
using RunRanks = std::function<void(int ranks, const std::function<void(dist::World&)>& body)>;

/// The cell on threads, as `run` starts them.
CellResult run_cell(const Cell& cell, Fault fault = Fault::none,
                    const RunRanks& run = [](int ranks, const std::function<void(dist::World&)>& body) {
                      dist::run_ranks(ranks, body);
                    });

}  // namespace trireme::test
