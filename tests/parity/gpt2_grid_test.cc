// The parity grid of GPT-2: every layout, schedule and ZeRO stage gives one rank's loss, gradients and parameters
// (docs/architecture.md section 12), with dropout, distinct micro-batches and uneven counts of ignored labels.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <future>
#include <map>
#include <set>
#include <string_view>

#include "tests/support/gpt2_cell.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"

namespace trireme::test {
namespace {

/// One rank's result for the same numbers, computed once.
const CellResult& reference(const Cell& cell) {
  static std::map<std::string, CellResult> known;
  Cell alone{.dtype = cell.dtype, .optimizer = cell.optimizer, .tied = cell.tied, .global_batch = cell.global_batch,
             .steps = cell.steps, .groups = cell.groups};
  auto [it, added] = known.try_emplace(alone.name());
  if (added) it->second = run_cell(alone);
  return it->second;
}

/// Empty when the cell equals one rank; else what differs most.
std::string difference(const Cell& cell, const CellResult& result) {
  const CellResult& want = reference(cell);
  double bound = cell.dtype == "fp64" ? 1e-10 : 1e-5;
  for (size_t i = 0; i < want.losses.size(); ++i) {
    double e = std::abs(result.losses[i] - want.losses[i]) / std::abs(want.losses[i]);
    if (!(e <= bound)) return fmt::format("loss of step {}: {} against {} ({:.1e})", i, result.losses[i], want.losses[i], e);
  }
  Worst gradient = worst(result.gradients, want.gradients);
  if (gradient.error > bound) return fmt::format("gradient of {}: {:.1e}", gradient.name, gradient.error);
  if (!(std::abs(result.grad_norm / want.grad_norm - 1) <= bound))
    return fmt::format("norm {} against {}", result.grad_norm, want.grad_norm);
  for (const auto& [name, tensor] : want.parameters) {
    double e = (result.parameters.at(name) - tensor).abs().max().item<double>();
    if (!(e <= (cell.dtype == "fp64" ? 1e-10 : 1e-3 * kCellLr))) return fmt::format("parameter {}: {:.1e}", name, e);
  }
  return "";
}

std::vector<Cell> whole_grid() {
  std::vector<std::array<int, 3>> layouts;
  for (int dp : {1, 2})
    for (int tp : {1, 2})
      for (int pp : {1, 2}) layouts.push_back({dp, tp, pp});
  layouts.insert(layouts.end(), {{1, 4, 1}, {1, 1, 4}, {1, 2, 4}});
  std::vector<Cell> cells;
  for (const auto& [dp, tp, pp] : layouts)
    for (const char* schedule : {"gpipe", "1f1b"})
      for (int zero : {0, 1, 2, 3})
        for (bool sp : {false, true})
          if ((!sp || tp > 1) && (zero < 2 || dp > 1))
            cells.push_back({.dp = dp, .tp = tp, .pp = pp, .schedule = schedule, .zero = zero, .sequence_parallel = sp});
  return cells;
}

// Few cells in which every pair of values of two axes that occurs in the grid still meets: each next one adds the
// most pairs.
template <class Values>
std::vector<Cell> pairwise(std::vector<Cell> grid, const Values& values_of) {
  using Pair = std::array<int, 4>;
  std::set<Pair> met;
  const auto news = [&](const Cell& cell) {
    const auto values = values_of(cell);
    std::vector<Pair> pairs;
    for (int a = 0; a < std::ssize(values); ++a)
      for (int b = a + 1; b < std::ssize(values); ++b)
        if (Pair pair{a, values[a], b, values[b]}; !met.contains(pair)) pairs.push_back(pair);
    return pairs;
  };
  std::vector<Cell> chosen;
  while (true) {
    std::vector<Pair> most;
    const Cell* best = nullptr;
    for (const Cell& cell : grid)
      if (auto pairs = news(cell); pairs.size() > most.size()) most = std::move(pairs), best = &cell;
    if (!best) return chosen;
    met.insert(most.begin(), most.end());
    chosen.push_back(*best);
  }
}

constexpr std::array<std::string_view, 8> kSchedules = {"gpipe", "1f1b", "zb-h1", "zb-2p",
                                                        "interleaved", "zb-v", "v-half", "v-min"};
constexpr int kOneChunk = 4;  // the first ones have one chunk a stage

int number_of(const std::string& schedule) {
  return static_cast<int>(std::ranges::find(kSchedules, schedule) - kSchedules.begin());
}

constexpr std::array<std::string_view, 8> kOptimizers = {"adamw", "adam", "sgd", "nesterov", "lion", "lamb", "adafactor", "muon"};

/// The cell trained for five steps. A bias of the keys has a gradient of zero in theory; Lion and Adafactor would follow
/// its rounding.
Cell with_optimizer(std::string_view optimizer, Cell cell) {
  cell.optimizer = optimizer;
  cell.steps = 5;
  if (optimizer == "lion" || optimizer == "adafactor") cell.groups = {{.pattern = "*.c_attn.bias", .freeze = true}};
  return cell;
}

std::vector<int> layout_axes(const Cell& cell) {
  return {cell.dp, cell.tp, cell.pp, cell.schedule == "gpipe", cell.zero, cell.sequence_parallel};
}

// ZeRO's stages with all that changes when a layer runs or contributes: recompute, sequence parallel, accumulation (two
// and seven samples: a micro-batch, or four of which a data rank lacks one) and schedules.
std::vector<Cell> zero_grid() {
  std::vector<Cell> cells;
  for (int zero : {0, 1, 2, 3})
    for (int recompute : {0, 1, 2})
      for (const auto& [tp, sp] : {std::pair(1, false), {2, false}, {2, true}})
        for (int64_t batch : {2, 7})
          for (const auto& [pp, schedule] : {std::pair(1, "1f1b"), {2, "1f1b"}, {2, "interleaved"}, {2, "zb-h1"}, {2, "zb-2p"},
                                             {2, "zb-v"}, {2, "v-half"}, {2, "v-min"}})
            cells.push_back({.dp = 2, .tp = tp, .pp = pp, .schedule = schedule, .zero = zero,
                             .sequence_parallel = sp, .global_batch = batch, .recompute_every = recompute == 1 ? 2 : 0,
                             .recompute_attention = recompute == 2});
  return cells;
}

std::vector<int> zero_axes(const Cell& cell) {
  return {cell.zero, cell.recompute_every + cell.recompute_attention, cell.tp + cell.sequence_parallel,
          static_cast<int>(cell.global_batch), cell.pp * 100 + number_of(cell.schedule)};
}

// Every rule of optimization with all that changes what a rank holds of a gradient, or when.
std::vector<Cell> optimizer_grid() {
  std::vector<Cell> cells;
  for (const std::string_view optimizer : kOptimizers)
    for (int zero : {0, 1, 2, 3})
      for (int recompute : {0, 1, 2})
        for (const auto& [tp, sp] : {std::pair(1, false), {2, false}, {2, true}})
          for (const auto& [pp, schedule] : {std::pair(1, "1f1b"), {2, "1f1b"}, {2, "interleaved"}, {2, "zb-v"}})
            cells.push_back(with_optimizer(optimizer, {.dp = 2, .tp = tp, .pp = pp, .schedule = schedule, .zero = zero,
                                                       .sequence_parallel = sp, .global_batch = 7,
                                                       .recompute_every = recompute == 1 ? 2 : 0,
                                                       .recompute_attention = recompute == 2}));
  return cells;
}

std::vector<int> optimizer_axes(const Cell& cell) {
  const auto optimizer = std::ranges::find(kOptimizers, cell.optimizer);
  return {static_cast<int>(optimizer - kOptimizers.begin()), cell.zero, cell.recompute_every + cell.recompute_attention,
          cell.tp + cell.sequence_parallel, cell.pp * 100 + number_of(cell.schedule)};
}

// Every schedule on 1 to 4 stages with as few and as many micro-batches as change its order; GPT-2's four blocks allow
// two chunks a stage on up to two.
std::vector<Cell> schedule_grid() {
  std::vector<Cell> cells;
  for (int number = 0; number < std::ssize(kSchedules); ++number)
    for (int pp = 1; pp <= (number < kOneChunk ? 4 : 2); ++pp)
      for (const int batches : std::set{1, 2, pp, pp + 1, 3 * pp})
        for (bool tied : {true, false})
          for (int recompute_every : {0, 1})
            cells.push_back({.pp = pp, .schedule = std::string(kSchedules[number]), .tied = tied, .global_batch = batches,
                             .recompute_every = recompute_every});
  return cells;
}

std::vector<int> schedule_axes(const Cell& cell) {
  return {number_of(cell.schedule), cell.pp, static_cast<int>(cell.global_batch), cell.tied, cell.recompute_every};
}

bool full_suite() { return std::getenv("TRIREME_FULL") != nullptr; }

TEST(Gpt2Grid, EveryLayoutEqualsOneRank) {
  std::vector<Cell> grid = whole_grid();
  std::vector<Cell> cells = full_suite() ? grid : pairwise(grid, layout_axes);
  int ran = 0, refused = 0;
  for (const Cell& cell : cells) {
    try {
      EXPECT_EQ(difference(cell, run_cell(cell)), "") << cell.name();
      ++ran;
    } catch (const base::ConfigError&) {
      ++refused;
    }
  }
  EXPECT_EQ(grid.size(), 92u);
  EXPECT_EQ(ran, full_suite() ? 92 : 14);
  EXPECT_EQ(refused, 0);
}

// A process may hold two models on meshes of their own: nothing of a world, a model or an optimizer is the process's.
TEST(Gpt2Grid, TwoModelsAtOnceAreAsEachAlone) {
  const Cell one{.dp = 2, .zero = 1, .global_batch = 7}, other{.tp = 2, .pp = 2, .schedule = "zb-h1", .tied = false};
  std::future<CellResult> beside = std::async(std::launch::async, [&] { return run_cell(one); });
  const CellResult here = run_cell(other);
  EXPECT_EQ(difference(one, beside.get()), "") << one.name();
  EXPECT_EQ(difference(other, here), "") << other.name();
}

TEST(Gpt2Grid, EveryZeroStageWithRecomputeAccumulationAndSchedules) {
  const std::vector<Cell> grid = zero_grid();
  const std::vector<Cell> cells = full_suite() ? grid : pairwise(grid, zero_axes);
  for (const Cell& cell : cells) EXPECT_EQ(difference(cell, run_cell(cell)), "") << cell.name();
  EXPECT_EQ(grid.size(), 576u);
  EXPECT_EQ(cells.size(), full_suite() ? 576u : 32u);
}

TEST(Gpt2Grid, OtherPrecisionOptimizerHeadAndRaggedBatches) {
  for (Cell cell : {Cell{.dp = 2, .tp = 2, .pp = 2, .zero = 1, .sequence_parallel = true, .dtype = "fp32"},
                    Cell{.dp = 1, .tp = 4, .pp = 2, .dtype = "fp32"},
                    Cell{.dp = 2, .tp = 1, .pp = 2, .zero = 1, .optimizer = "sgd"},
                    Cell{.dp = 1, .tp = 2, .pp = 2, .optimizer = "sgd"},
                    Cell{.dp = 2, .tp = 2, .pp = 2, .zero = 1, .tied = false},
                    Cell{.dp = 1, .tp = 2, .pp = 4, .sequence_parallel = true, .tied = false},
                    // A data rank that has nothing to do; a last micro-batch that one lacks; fewer micro-batches than
                    // stages; 5 of 4.
                    Cell{.dp = 2, .zero = 0, .global_batch = 1},
                    Cell{.dp = 2, .pp = 2, .zero = 1, .global_batch = 1},
                    Cell{.dp = 2, .tp = 2, .zero = 2, .global_batch = 1},
                    Cell{.dp = 2, .zero = 3, .global_batch = 1},
                    Cell{.dp = 2, .tp = 1, .pp = 2, .zero = 1, .global_batch = 7},
                    Cell{.dp = 3, .tp = 1, .pp = 1, .zero = 3, .dtype = "fp32", .global_batch = 7},
                    Cell{.dp = 2, .tp = 2, .pp = 2, .zero = 3, .sequence_parallel = true, .dtype = "fp32", .tied = false},
                    Cell{.dp = 3, .tp = 1, .pp = 2, .zero = 2, .optimizer = "sgd"},
                    Cell{.dp = 1, .tp = 1, .pp = 4, .global_batch = 2},
                    Cell{.dp = 1, .tp = 1, .pp = 4, .schedule = "gpipe", .global_batch = 5}}) {
    EXPECT_EQ(difference(cell, run_cell(cell)), "") << cell.name();
  }
}

TEST(Gpt2Grid, EveryOptimizerWithZeroRecomputeAndSchedules) {
  const std::vector<Cell> grid = optimizer_grid();
  const std::vector<Cell> cells = full_suite() ? grid : pairwise(grid, optimizer_axes);
  for (const Cell& cell : cells) EXPECT_EQ(difference(cell, run_cell(cell)), "") << cell.name();
  EXPECT_EQ(grid.size(), 1152u);
  EXPECT_EQ(cells.size(), full_suite() ? 1152u : 32u);
}

TEST(Gpt2Grid, OptimizersInFp32) {
  // Lion, LAMB and Muon turn what rounding leaves of a small gradient into a whole step: fp64 alone.
  for (const char* optimizer : {"adamw", "adam", "sgd", "nesterov", "adafactor"})
    for (Cell cell : {Cell{.dp = 2, .tp = 2, .zero = 1, .dtype = "fp32"},
                      Cell{.tp = 2, .pp = 2, .sequence_parallel = true, .dtype = "fp32"}}) {
      cell = with_optimizer(optimizer, cell);
      EXPECT_EQ(difference(cell, run_cell(cell)), "") << cell.name();
    }
}

TEST(Gpt2Grid, FrozenAndScaledParameters) {
  const std::vector<config::ParamGroup> groups = {{.pattern = "*.wte.weight", .freeze = true},
                                                  {.pattern = "*.h.[01].*", .freeze = true},
                                                  {.pattern = "*.mlp.*", .lr_scale = 0.1, .weight_decay = 0.3}};
  for (Cell cell : {Cell{.dp = 2, .pp = 2, .zero = 1}, Cell{.tp = 2, .pp = 2, .schedule = "zb-h1"},
                    Cell{.dp = 2, .tp = 2, .zero = 1, .sequence_parallel = true}, Cell{.dp = 2, .pp = 2, .zero = 2},
                    Cell{.dp = 2, .tp = 2, .zero = 3, .sequence_parallel = true, .recompute_every = 1}}) {
    cell.groups = groups;
    EXPECT_EQ(difference(cell, run_cell(cell)), "") << cell.name();
  }
}

TEST(Gpt2Grid, EveryScheduleOnOneToFourStages) {
  const std::vector<Cell> grid = schedule_grid();
  const std::vector<Cell> cells = full_suite() ? grid : pairwise(grid, schedule_axes);
  for (const Cell& cell : cells) EXPECT_EQ(difference(cell, run_cell(cell)), "") << cell.name();
  EXPECT_EQ(grid.size(), 384u);
  EXPECT_EQ(cells.size(), full_suite() ? 384u : 51u);
}

TEST(Gpt2Grid, SchedulesOnEveryAxis) {
  std::vector<Cell> cells = {
      {.pp = 2, .schedule = "interleaved"},
      {.dp = 2, .pp = 2, .schedule = "zb-v", .zero = 1},
      {.tp = 2, .pp = 2, .schedule = "zb-h1", .sequence_parallel = true},
      {.pp = 4, .schedule = "zb-2p"},
      {.dp = 2, .tp = 2, .pp = 2, .schedule = "v-half", .zero = 1, .sequence_parallel = true},
      {.tp = 2, .pp = 2, .schedule = "v-min"},
      // Micro-batches that the stages do not divide, fewer than stages, and one that a data rank lacks.
      {.pp = 2, .schedule = "interleaved", .tied = false, .global_batch = 5},
      {.pp = 4, .schedule = "zb-h1", .global_batch = 2},
      {.dp = 2, .pp = 2, .schedule = "zb-v", .zero = 1, .tied = false, .global_batch = 7},
  };
  if (full_suite())
    for (const char* schedule : {"interleaved", "zb-h1", "zb-2p", "zb-v", "v-half", "v-min"})
      for (int dp : {1, 2})
        for (int tp : {1, 2})
          for (int zero : {0, 1})
            for (bool tied : {true, false})
              cells.push_back({.dp = dp, .tp = tp, .pp = 2, .schedule = schedule, .zero = zero, .sequence_parallel = tp == 2,
                               .tied = tied, .recompute_every = zero});
  for (const Cell& cell : cells) EXPECT_EQ(difference(cell, run_cell(cell)), "") << cell.name();
}

TEST(Gpt2Grid, RecomputedActivationsGiveTheSameBits) {
  for (const char* schedule : {"1f1b", "zb-h1"}) {
    Cell cell{.tp = 2, .pp = 2, .schedule = schedule, .sequence_parallel = true, .dtype = "fp32"};
    const CellResult kept = run_cell(cell);
    for (int every : {1, 2}) {
      cell.recompute_every = every;
      EXPECT_EQ(run_cell(cell).digests, kept.digests) << cell.name();
    }
    cell.recompute_every = 0;
    cell.recompute_blocks = 1;
    EXPECT_EQ(run_cell(cell).digests, kept.digests) << "one block a stage";
    cell.recompute_blocks.reset();
    cell.recompute_attention = true;
    EXPECT_EQ(run_cell(cell).digests, kept.digests) << "attention";
  }
}

TEST(Gpt2Grid, PlainOperationsGiveWhatFusedKernelsDo) {
  for (const char* schedule : {"1f1b", "gpipe", "zb-h1"})
    for (int tp : {1, 2}) {
      Cell cell{.tp = tp, .pp = 2, .schedule = schedule, .fuse = false};
      EXPECT_EQ(difference(cell, run_cell(cell)), "") << cell.name();
    }
}

TEST(Gpt2Grid, OptimizerStateOnDiskGivesTheSameBits) {
  test::TemporaryFolder folder;
  for (const char* optimizer : {"adamw", "muon", "adafactor"})
    for (const char* dtype : {"fp32", "bf16"}) {
      Cell cell{.dp = 2, .zero = 2, .dtype = dtype, .optimizer = optimizer};
      const CellResult kept = run_cell(cell);
      cell.offload = folder.path();
      EXPECT_EQ(run_cell(cell).digests, kept.digests) << cell.name();
    }
  EXPECT_EQ(folder.entries(), 0);
}

TEST(Gpt2Grid, TheSameLayoutTwiceIsBitIdentical) {
  Cell cell{.dp = 2, .tp = 2, .pp = 2, .zero = 1, .sequence_parallel = true, .dtype = "fp32"};
  EXPECT_EQ(run_cell(cell).digests, run_cell(cell).digests);
}

TEST(Gpt2Grid, ZeroStagesGiveTheSameBits) {
  // 0 and 1 always, and 2 and 3; all four where a parameter has one contribution a step, on data ranks alone.
  for (Cell cell : {Cell{.dp = 2, .pp = 2, .dtype = "fp32"}, Cell{.dp = 2, .dtype = "fp32", .tied = false, .global_batch = 2}}) {
    const bool all = cell.global_batch == 2;
    std::vector<CellResult> results;
    for (int zero : {0, 1, 2, 3}) {
      cell.zero = zero;
      results.push_back(run_cell(cell));
    }
    for (const auto& [first, second] : {std::pair(0, 1), {2, 3}, {all ? 0 : 2, 2}})
      for (const auto& [name, tensor] : results[first].parameters)
        EXPECT_TRUE(tensor.equal(results[second].parameters.at(name))) << name << " of ZeRO " << first << " and " << second;
  }
}

TEST(Gpt2Grid, NoticesPlantedFaults) {
  Cell cell{.dp = 2, .tp = 1, .pp = 2};
  for (Fault fault : {Fault::dropped_reduce, Fault::doubled_tie, Fault::wrong_loss_scale, Fault::swapped_micro_batches,
                      Fault::shifted_dropout, Fault::dropped_scatter, Fault::stale_gather}) {
    cell.zero = fault == Fault::dropped_scatter ? 2 : fault == Fault::stale_gather ? 3 : 0;
    std::string found;
    try {
      found = difference(cell, run_cell(cell, fault));
    } catch (const base::Error& e) {
      found = e.what();
    }
    EXPECT_NE(found, "") << "fault " << static_cast<int>(fault) << " went unnoticed";
  }
}

TEST(Gpt2Grid, RefusesWhatCannotBe) {
  EXPECT_THROW(run_cell({.tp = 3}), base::ConfigError);   // 4 heads
  EXPECT_THROW(run_cell({.pp = 5}), base::ConfigError);   // 4 layers
}

}  // namespace
}  // namespace trireme::test
