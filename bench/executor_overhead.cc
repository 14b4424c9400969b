// Microseconds of an action of the executor where layers do nothing: one stage, GPipe.
//
//   executor_overhead
#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "trireme/pipeline/executor.h"
#include "trireme/schedule/generators.h"

using namespace trireme;

struct Nothing : nn::Layer {
  nn::State forward(nn::State in, const nn::Context&) override { return in; }
};

int main() {
  constexpr int kMicroBatches = 64, kSteps = 50;
  dist::set_rank_threads(1);
  dist::DeviceMesh mesh;
  nn::ModelDef def;
  def.layers.push_back({"nothing", true, [](nn::Builder&) { return std::make_unique<Nothing>(); }});
  def.loss = [](const nn::State&, const nn::Batch&, const comm::Comm&) {
    return at::zeros({}, at::kDouble);
  };
  def.loss_weight = [](const nn::Batch& batch) { return batch.rows; };
  auto model = nn::build_model(def, mesh, {}, {1}, {0});
  model->store.materialize(0, true);
  pipeline::Executor executor(schedule::gpipe({.ranks = 1, .micro_batches = kMicroBatches}), *model, mesh);
  std::vector<nn::Batch> batches(kMicroBatches);
  for (nn::Batch& batch : batches) batch.rows = batch.seq = 1;
  double best = 1e9;
  for (int i = 0; i < kSteps; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    executor.run(batches, {}, nn::Mode::train);
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count());
  }
  std::printf("%.3f\n", best / (2 * kMicroBatches));
}
