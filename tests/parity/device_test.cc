// Training on devices: the same model on the same data as on the CPU, with what the host and the device hold kept apart.
// On machines without GPUs a fake device takes their place, which knows no streams.
#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/fake_device.h"
#include "tests/support/gpt2_cell.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/philox.h"
#include "trireme/comm/backends/nccl.h"
#include "trireme/config/load.h"
#include "trireme/data/indexed.h"
#include "trireme/dist/device.h"
#include "trireme/dist/redistribute.h"
#include "trireme/generate/generator.h"
#include "trireme/train/trainer.h"

namespace trireme::test {
namespace {

int gpus() {
  return c10::impl::hasDeviceGuardImpl(c10::kCUDA) ? c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount() : 0;
}

void run_on_gpus(int ranks, const std::function<void(dist::World&)>& body) {
  dist::run_ranks(ranks, body, 1, std::chrono::seconds(60), "cuda");
}

std::vector<Cell> cells() {
  // A bias of the keys has a gradient of zero in theory; Lion and Adafactor would follow its rounding.
  const std::vector<config::ParamGroup> keys = {{.pattern = "*.c_attn.bias", .freeze = true}};
  return {
      {},
      {.optimizer = "lion", .groups = keys},
      {.optimizer = "nesterov", .recompute_attention = true},
      {.tp = 2, .sequence_parallel = true, .optimizer = "adafactor", .groups = keys},
      {.tp = 2, .optimizer = "muon", .recompute_every = 1},
      {.dp = 2, .zero = 1, .optimizer = "lamb"},
      {.dp = 2, .zero = 2},
      {.dp = 2, .zero = 3, .optimizer = "muon"},
      {.pp = 2, .schedule = "zb-h1"},
      {.pp = 2, .schedule = "interleaved", .dtype = "fp32"},
      {.dp = 2, .tp = 2, .pp = 2, .schedule = "1f1b", .zero = 1, .sequence_parallel = true},
      {.dp = 2, .tp = 2, .zero = 1, .dtype = "bf16"},
  };
}

std::string difference(const Cell& cell, const CellResult& got, const CellResult& want) {
  const bool wide = cell.dtype == "fp64", narrow = cell.dtype == "bf16";
  const double bound = wide ? 1e-10 : narrow ? 2e-2 : 1e-5;
  for (size_t i = 0; i < want.losses.size(); ++i)
    if (!(std::abs(got.losses[i] / want.losses[i] - 1) <= bound))
      return fmt::format("loss of step {}: {} against {}", i, got.losses[i], want.losses[i]);
  if (const Worst found = worst(got.gradients, want.gradients); !(found.error <= (narrow ? 5e-2 : bound)))
    return fmt::format("gradient of {}: {:.1e}", found.name, found.error);
  // A step is at most the learning rate; signs may flip where a gradient is nearly zero.
  if (const Worst found = worst(got.parameters, want.parameters); !(found.error <= (wide ? 1e-9 : narrow ? 0.1 : 1e-3)))
    return fmt::format("parameter {}: {:.1e}", found.name, found.error);
  return "";
}

TEST(Device, FakeDevicesFollowTheCpu) {
  for (const Cell& cell : cells())
    EXPECT_EQ(difference(cell, run_cell(cell, Fault::none, run_on_fake_devices), run_cell(cell)), "") << cell.name();
}

TEST(Device, GpusFollowTheCpu) {
  if (gpus() == 0) GTEST_SKIP() << "no GPU here";
  for (const Cell& cell : cells()) {
    if (cell.ranks() > gpus()) continue;
    EXPECT_EQ(difference(cell, run_cell(cell, Fault::none, run_on_gpus), run_cell(cell)), "") << cell.name();
  }
}

using generate::Continuation, generate::Request;

std::vector<Continuation> continue_prompts(int tp, int pp, const Request& request, const RunRanks& run) {
  const base::Json tree = {{"family", "gpt2"}, {"n_layer", 4}, {"n_embd", 32}, {"n_head", 4}, {"n_positions", 32},
                           {"vocab_size", 61}, {"initializer_range", 0.3}};
  std::vector<Continuation> out;
  const layout::Mesh mesh({.pp = pp, .dp = 1, .tp = tp});
  run(mesh.size(), [&](dist::World& world) {
    auto model = train::assemble(tree, train::forward_placement(mesh, base::DType::f64, 1), 1, world);
    train::make_parameters(*model, false, nullptr);
    auto result = generate::generate(*model->model, model->mesh, request);
    if (world.rank() == 0) out = std::move(result);
  });
  return out;
}

void run_on_cpu(int ranks, const std::function<void(dist::World&)>& body) { dist::run_ranks(ranks, body); }

TEST(Device, GenerationOnFakeDevicesGivesTheSameTokens) {
  for (int64_t beams : {1, 3}) {
    const Request request{.prompts = {{1, 2, 3}, {7}}, .max_new_tokens = 8, .sampling = {.seed = 3}, .beams = {.count = beams}};
    const auto want = continue_prompts(1, 1, request, run_on_cpu);
    for (auto [tp, pp] : {std::pair{1, 1}, {2, 1}, {1, 2}}) {
      const auto got = continue_prompts(tp, pp, request, run_on_fake_devices);
      for (size_t p = 0; p < want.size(); ++p) EXPECT_EQ(got[p].new_ids, want[p].new_ids) << "tp " << tp << " pp " << pp;
    }
  }
}

/// The losses of a run with evaluation and checkpoints, some of its steps on one kind of device and the rest on another.
class Runs {
 public:
  Runs() {
    data::IndexedWriter writer(folder_ / "data", base::DType::u16);
    std::vector<int64_t> ids;
    for (uint32_t i = 0; i < 2000; ++i) ids.push_back(static_cast<int64_t>(base::uniform_below(9, i, 61)));
    writer.add_sequence(ids);
    writer.end_document();
    writer.finish();
  }
  double loss(const std::string& name, int steps, const RunRanks& run, bool resume = false) {
    const std::string yaml = fmt::format(R"(
model: {{family: gpt2, n_layer: 2, n_embd: 16, n_head: 2, n_positions: 16, vocab_size: 61}}
data: {{train: [{{path: {0}/data}}], valid: [{{path: {0}/data}}], seq_length: 16}}
train:
  output_dir: {0}/{1}
  train_iter: {2}
  global_batch_size: 8
  train_micro_batch_size: 2
  dtype: fp64
  dist: {{tensor_parallel_size: 1, pipeline_parallel_size: 2}}
  zero_optimization: {{stage: 1}}
  checkpointer: {{period: 2, async: true}}
  evaluation: {{eval_period: 2, eval_iter: 1, metrics: [accuracy]}}
  scheduler: {{name: warmup_constant, warmup_ratio: 0}}
  telemetry: {{layer_norms: 1}}
optim: {{name: adamw, lr: 0.01, ema: {{decay: 0.9}}}}
)",
                                         folder_.path().string(), name, steps);
    double loss = 0;
    run(4, [&](dist::World& world) {
      base::Logger log("", base::LogLevel::error);
      const train::TrainSummary summary = train::train(config::parse(yaml, "test"), world, {.resume = resume}, log);
      if (world.rank() == 0) loss = summary.loss;
    });
    return loss;
  }

 private:
  TemporaryFolder folder_;
};

TEST(Device, RunsOnFakeDevicesGoOnOnTheCpuAndBack) {
  Runs runs;
  const double want = runs.loss("cpu", 5, run_on_cpu);
  EXPECT_NEAR(runs.loss("fake", 5, run_on_fake_devices), want, 1e-9);
  runs.loss("moved", 3, run_on_fake_devices);
  EXPECT_NEAR(runs.loss("moved", 5, run_on_cpu, true), want, 1e-9);
  runs.loss("back", 3, run_on_cpu);
  EXPECT_NEAR(runs.loss("back", 5, run_on_fake_devices, true), want, 1e-9);
}

TEST(Device, TheFakeOneKeepsHostAndDeviceApart) {
  const at::Tensor host = at::ones({3}), there = dist::to_device(host, fake_device());
  EXPECT_FALSE(there.is_cpu());
  EXPECT_TRUE(at::equal(dist::to_host(there + there), host + host));
  EXPECT_ANY_THROW(there + host);
  EXPECT_ANY_THROW(there + dist::to_device(host, fake_device(1)));
}

TEST(Device, GroupsOfTheHostsMemoryRefuseOthers) {
  dist::run_ranks(2, [](dist::World& world) {
    const comm::Comm comm = world.comm(std::vector<int>{0, 1}, "both");
    const at::Tensor there = at::ones({3}, at::TensorOptions(at::kFloat).device(fake_device()));
    try {
      dist::all_reduce(there, comm);
      FAIL() << "a group of the host's memory took a device's";
    } catch (const base::ConfigError& e) {
      const std::string text = e.what();
      EXPECT_NE(text.find("group 'both'"), std::string::npos) << text;
      EXPECT_NE(text.find("nccl"), std::string::npos) << text;
    }
  });
}

TEST(Device, CudaIsRefusedWhereItCannotBe) {
  EXPECT_NO_THROW(dist::check_device("cpu"));
  EXPECT_THROW(dist::check_device("tpu"), base::ConfigError);
  if (gpus() > 0) {
    EXPECT_THROW(dist::open_device("cuda", 0, gpus() + 1), base::ConfigError);
    return;
  }
  try {
    dist::check_device("cuda");
    FAIL() << "cuda without a GPU";
  } catch (const base::ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("train.device is cuda, but"), std::string::npos) << e.what();
  }
  if (comm::nccl_version().empty()) {
    EXPECT_THROW(comm::make_nccl_backend(nullptr, 0, std::chrono::seconds(1)), base::ConfigError);
  }
}

TEST(Device, TimesAreTheDevices) {
  for (c10::Device device : {c10::Device(c10::kCPU), fake_device()}) {
    dist::DeviceClock clock(device);
    const auto begin = clock.mark();
    at::Tensor a = at::ones({200, 200}, at::TensorOptions(at::kFloat).device(device));
    for (int i = 0; i < 10; ++i) a = at::mm(a, a);
    const auto end = clock.mark();
    EXPECT_GT(clock.seconds(begin, end), 0);
    EXPECT_LT(clock.seconds(begin, end), 5);
  }
}

}  // namespace
}  // namespace trireme::test
