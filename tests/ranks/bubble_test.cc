// The bubble of a pipeline that sleeps is the one that the simulation promises.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <torch/csrc/autograd/custom_function.h>

#include <chrono>
#include <mutex>
#include <thread>

#include "trireme/layout/stage_manager.h"
#include "trireme/pipeline/executor.h"
#include "trireme/schedule/generators.h"

namespace trireme::pipeline {
namespace {

constexpr int kStages = 4, kMicroBatches = 8, kBlocks = 8;
constexpr auto kNap = std::chrono::milliseconds(10);

void nap() { std::this_thread::sleep_for(kNap); }

/// Sleeps once in each of forward, input gradient and weight gradient.
struct Nap : torch::autograd::Function<Nap> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, nn::WeightQueue* queue) {
    ctx->saved_data["queue"] = reinterpret_cast<int64_t>(queue);
    nap();
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    nap();
    auto* queue = reinterpret_cast<nn::WeightQueue*>(ctx->saved_data["queue"].toInt());
    queue ? queue->add(nap) : nap();
    return {grads[0], {}};
  }
};

struct Block : nn::Layer {
  nn::State forward(nn::State in, const nn::Context& context) override {
    at::Tensor x = in.has("x") ? in.at("x") : context.anchor.expand({1, 1});
    return {{"x", Nap::apply(x, context.weight_queue)}};
  }
  nn::StateSpec describe(const nn::StateSpec&, const nn::BatchShape&) const override {
    return {{"x", {1, 1}, base::DType::f32, true}};
  }
};

nn::ModelDef sleeping_chain() {
  nn::ModelDef def;
  for (int i = 0; i < kBlocks; ++i)
    def.layers.push_back({"block", true, [](nn::Builder&) { return std::make_unique<Block>(); }});
  def.loss = [](const nn::State& out, const nn::Batch&, const comm::Comm&) {
    return out.at("x").sum().to(at::kDouble);
  };
  def.loss_weight = [](const nn::Batch& batch) { return batch.rows; };
  return def;
}

schedule::Simulation run_once(const schedule::Schedule& schedule) {
  std::vector<std::vector<schedule::Span>> timeline(kStages);
  std::mutex mutex;
  dist::run_ranks(kStages, [&](dist::World& world) {
    dist::DeviceMesh mesh(world, layout::Mesh({.pp = kStages, .dp = 1, .tp = 1}));
    auto model = nn::build_model(sleeping_chain(), mesh, {}, layout::distribute_layers(kBlocks, schedule.chunks),
                                 schedule.rank_of_chunk);
    model->store.materialize(0, true);
    Executor executor(schedule, *model, mesh);
    std::vector<nn::Batch> batches(kMicroBatches);
    for (nn::Batch& batch : batches) batch.rows = batch.seq = 1;
    const StepResult result = executor.run(batches, {}, nn::Mode::train, {.record = true});
    std::lock_guard lock(mutex);
    for (const schedule::Span& span : result.executed)
      if (schedule::is_compute(span.action.op)) timeline[world.rank()].push_back(span);
  });
  return schedule::summarize(schedule, std::move(timeline), {});
}

TEST(Bubble, MeasuredEqualsSimulated) {
  for (std::string_view name : schedule::names()) {
    if (name == "forward") continue;
    SCOPED_TRACE(name);
    const auto schedule = schedule::generate(name, {.ranks = kStages, .micro_batches = kMicroBatches});
    const schedule::Simulation simulated = schedule::simulate(schedule, {});
    // Other work on the machine delays wake-ups: the best of a few runs counts.
    double nearest = 1;
    for (int attempt = 0; attempt < 12 && nearest > 0.03; ++attempt)
      nearest = std::min(nearest, std::abs(run_once(schedule).bubble - simulated.bubble));
    double load = 0;
    if (nearest > 0.03 && ::getloadavg(&load, 1) == 1 && load > std::thread::hardware_concurrency())
      GTEST_SKIP() << "the machine is busy (load " << load << "): sleeping layers wake up late";
    EXPECT_LE(nearest, 0.03) << "simulated " << simulated.bubble;
  }
}

}  // namespace
}  // namespace trireme::pipeline
