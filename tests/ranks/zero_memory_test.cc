// Memory and traffic of ZeRO's stages: what each rank's allocator counted against the layout report's formula.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>

#include "tests/support/temporary_folder.h"
#include "trireme/kernels/allocator.h"
#include "trireme/optim/groups.h"
#include "trireme/schedule/generators.h"
#include "trireme/train/assembly.h"
#include "trireme/train/execute_pipeline.h"
#include "trireme/train/report.h"
#include "trireme/train/run_state.h"

namespace trireme::train {
namespace {

struct Measured {
  int64_t peak = 0;  // of the fullest rank
  RankMemory formula;
  comm::Traffic traffic;  // of rank 0 over dp, in one step
  StepTraffic expected;
};

base::Json tree(int layers, int width, int vocab) {
  return {{"family", "gpt2"}, {"n_layer", layers}, {"n_embd", width}, {"n_head", width / 32}, {"n_positions", 64},
          {"vocab_size", vocab}, {"resid_pdrop", 0.0}, {"embd_pdrop", 0.0}, {"attn_pdrop", 0.0}};
}

std::vector<nn::Batch> batches(int64_t count, int64_t seq, int64_t vocab) {
  std::vector<nn::Batch> made;
  for (int64_t m = 0; m < count; ++m) {
    at::Tensor ids = (at::arange(seq + 1, at::kLong) * 7919 + m * 104729).remainder(vocab).unsqueeze(0);
    made.push_back({.tensors = {{"input_ids", ids.narrow(1, 0, seq).contiguous()},
                                {"labels", ids.narrow(1, 1, seq).contiguous()}},
                    .samples = at::full({1}, m, at::kLong), .rows = 1, .seq = seq});
  }
  return made;
}

/// What dp stands beside.
struct Others {
  int tp = 1, pp = 1;
  std::string dtype = "fp32";
  std::optional<std::string> offload = {};
};

Measured measure(const base::Json& model, int dp, int zero, int micro_batches = 1,
                 const std::vector<config::ParamGroup>& groups = {}, const Others& others = {}) {
  constexpr int64_t kSeq = 64;
  kernels::install_caching_allocator();
  config::Optim optim;
  optim.groups = groups;
  optim.offload = others.offload;
  std::vector<Measured> ranks(dp * others.tp * others.pp);
  dist::run_ranks(static_cast<int>(ranks.size()), [&](dist::World& world) {
    kernels::tag_memory(world.rank());
    Measured& measured = ranks[world.rank()];
    const int64_t before = kernels::memory_counters().live;
    kernels::reset_peak();
    const layout::Mesh mesh({.pp = others.pp, .dp = dp, .tp = others.tp});
    auto run = assemble(model,
                        {.mesh = mesh,
                         .schedule = schedule::generate("1f1b", {.ranks = others.pp, .micro_batches = micro_batches}),
                         .options = {.dtype = base::dtype_of(others.dtype)}},
                        kSeq, world);
    optim::freeze(run->model->store, optim);
    make_parameters(*run, true, nullptr, zero);
    optim::ShardedOptimizer optimizer(world, run->mesh, run->model->store, optim, zero);
    fill_masters(*run, optimizer, nullptr);
    OverlappedSync overlap(optimizer.sync(), run->parameters.get());
    pipeline::Executor executor(run->schedule, *run->model, run->mesh, {}, &overlap);
    const auto data = batches(micro_batches, kSeq, model["vocab_size"].get<int64_t>());
    for (uint64_t step = 0; step < 2; ++step) {
      const comm::Traffic begun = run->mesh.dp.traffic();
      execute_pipeline(executor, optimizer, data, {.seed = 0, .step = step});
      optimizer.step(1e-4);
      const comm::Traffic now = run->mesh.dp.traffic();
      measured.traffic.all_reduce = now.all_reduce - begun.all_reduce;
      measured.traffic.reduce_scatter = now.reduce_scatter - begun.reduce_scatter;
      measured.traffic.all_gather = now.all_gather - begun.all_gather;
    }
    measured.peak = kernels::memory_counters().peak - before;
    const layout::Coord coord = run->mesh.coord;
    measured.formula = rank_memory(run->description, mesh, coord, optim, zero);
    measured.expected = step_traffic(run->description, mesh, coord, optim, zero, micro_batches);
  });
  for (const Measured& rank : ranks) ranks[0].peak = std::max(ranks[0].peak, rank.peak);
  return ranks[0];
}

TEST(ZeroMemory, PeakIsTheFormulasPlusActivations) {
  const base::Json model = tree(16, 128, 512);
  const std::vector<config::ParamGroup> none, frozen = {{.pattern = "*.h.[0-5].*", .freeze = true}};
  for (const auto& groups : {none, frozen}) {
    const Measured one = measure(model, 1, 0, 1, groups);
    const int64_t activations = one.peak - one.formula.total();
    for (int dp : {2, 3}) {
      for (int zero : {0, 1, 2, 3}) {
        const Measured many = measure(model, dp, zero, 1, groups);
        const auto expected = static_cast<double>(many.formula.total() + activations);
        EXPECT_NEAR(static_cast<double>(many.peak) / expected, 1, 0.05)
            << "dp " << dp << " ZeRO " << zero << ": " << many.peak << " bytes, activations " << activations << ", formula "
            << many.formula.parameters << " + " << many.formula.gradients << " + " << many.formula.optimizer << " + "
            << many.formula.working;
      }
    }
  }
}

TEST(ZeroMemory, PeakIsTheFormulasPlusActivationsOnOtherAxesAndIn16Bits) {
  const base::Json model = tree(16, 128, 512);
  for (const Others& others : {Others{.tp = 2}, {.pp = 2}, {.dtype = "bf16"}, {.tp = 2, .dtype = "bf16"}}) {
    const Measured one = measure(model, 1, 0, 2, {}, others);
    const int64_t activations = one.peak - one.formula.total();
    for (int zero : {0, 1, 2, 3}) {
      if (zero == 3 && others.pp > 1) continue;
      const Measured many = measure(model, 2, zero, 2, {}, others);
      const auto expected = static_cast<double>(many.formula.total() + activations);
      EXPECT_NEAR(static_cast<double>(many.peak) / expected, 1, 0.05)
          << "tp " << others.tp << " pp " << others.pp << ' ' << others.dtype << " ZeRO " << zero << ": " << many.peak
          << " bytes, activations " << activations << ", formula " << many.formula.total();
    }
  }
}

TEST(ZeroMemory, StateOnADiskIsNotInMemory) {
  const base::Json model = tree(16, 128, 512);
  test::TemporaryFolder folder;
  const Measured whole = measure(model, 1, 0), away = measure(model, 1, 0, 1, {}, {.offload = folder.path()});
  EXPECT_EQ(away.formula.optimizer, 0);
  EXPECT_LT(away.peak, whole.peak - whole.formula.optimizer * 9 / 10);
}

/// Live bytes when the backward pass begins, less those when the forward pass did.
struct KeptBytes : pipeline::StepObserver {
  void before_layer(int layer, pipeline::Pass pass) override {
    if (pass == pipeline::Pass::forward && layer == 0 && before == 0) before = kernels::memory_counters().live;
    if (pass == pipeline::Pass::backward && kept == 0) kept = kernels::memory_counters().live - before;
  }
  void after_layer(int, pipeline::Pass) override {}
  void end_step() override {}
  int64_t before = 0, kept = 0;
};

TEST(RecomputeMemory, FullKeepsLessThanASeventhAndTheOthersBetween) {
  kernels::install_caching_allocator();
  base::Json model = tree(12, 256, 512);
  model["n_positions"] = 1024;
  const auto kept = [&](const pipeline::StageOptions& options) {
    int64_t bytes = 0;
    dist::run_ranks(1, [&](dist::World& world) {
      kernels::tag_memory(0);
      auto run = assemble(model, {.mesh = layout::Mesh({.pp = 1, .dp = 1, .tp = 1}),
                                  .schedule = schedule::generate("1f1b", {.ranks = 1, .micro_batches = 1})}, 1024, world);
      make_parameters(*run, true, nullptr, 0);
      KeptBytes observer;
      pipeline::Executor executor(run->schedule, *run->model, run->mesh, options, &observer);
      executor.run(batches(1, 1024, 512), {}, nn::Mode::train);
      bytes = observer.kept;
    });
    return static_cast<double>(bytes);
  };
  const double all = kept({}), full = kept({.recompute_every = 1}), second = kept({.recompute_every = 2}),
               blocks = kept({.recompute_blocks = 9});
  EXPECT_LE(full, 0.15 * all) << full << " of " << all;
  EXPECT_LT(second, 0.65 * all);
  EXPECT_LT(blocks, 0.40 * all);
  EXPECT_GT(second, blocks);
  EXPECT_LE(kept({.recompute_attention = true}), all);
}

TEST(ZeroMemory, ShardedStatesOfGpt2SaveAFifth) {
  if (!std::getenv("TRIREME_FULL")) GTEST_SKIP() << "124 million parameters, twice: in the full suite";
  const base::Json model = {{"family", "gpt2"}, {"resid_pdrop", 0.0}, {"embd_pdrop", 0.0}, {"attn_pdrop", 0.0}, {"vocab_size", 50257}};
  std::vector<int64_t> peaks;
  for (int zero : {0, 1, 2, 3}) {
    const Measured measured = measure(model, 2, zero);
    std::printf("ZeRO %d: %.1f MiB a rank, formula %.1f\n", zero, static_cast<double>(measured.peak) / (1 << 20),
                static_cast<double>(measured.formula.total()) / (1 << 20));
    peaks.push_back(measured.peak);
  }
  EXPECT_LE(static_cast<double>(peaks[1]), 0.80 * static_cast<double>(peaks[0]));
  EXPECT_LT(peaks[2], peaks[1]);
  EXPECT_LT(peaks[3], peaks[2]);
}

TEST(ZeroMemory, ReportStatesTheTraffic) {
  const base::Json model = tree(3, 64, 160);
  for (int zero : {0, 1, 2, 3}) {
    for (int micro_batches : {1, 4}) {
      const Measured many = measure(model, 2, zero, micro_batches);
      // Buckets are padded, and the step exchanges a few numbers beside them.
      const auto near = [&](int64_t counted, int64_t stated) {
        EXPECT_NEAR(static_cast<double>(counted), static_cast<double>(stated), 0.01 * static_cast<double>(stated) + 64)
            << "ZeRO " << zero << ", " << micro_batches << " micro-batches";
      };
      near(zero == 0 ? many.traffic.all_reduce : many.traffic.reduce_scatter, many.expected.gradients);
      if (zero < 3) near(many.traffic.all_gather, many.expected.parameters);
      // What is whole at the turn from forward to backward stays.
      EXPECT_LE(many.traffic.all_gather, many.expected.parameters * 1.01);
      if (zero == 3) {
        EXPECT_GE(many.traffic.all_gather, many.expected.parameters / 2);
      }
    }
  }
}

}  // namespace
}  // namespace trireme::train
