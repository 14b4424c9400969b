// A chain of layers, a criterion and an optimizer of one's own on any mesh; the loss is always the
// same:  own_pipeline 2 2 2    (stages, data ranks, tensor ranks: threads of this process)

#include <ATen/ATen.h>

#include <cstdio>
#include <cstdlib>

#include "trireme/layout/stage_manager.h"
#include "trireme/nn/layers.h"
#include "trireme/optim/grad_sync.h"
#include "trireme/pipeline/executor.h"
#include "trireme/schedule/generators.h"

using namespace trireme;
using nn::Builder, nn::Batch, nn::Context, nn::State;

constexpr int kIn = 8, kSize = 32, kBlocks = 4, kMicroBatches = 4;

struct Enter : nn::Layer {
  nn::Linear linear;
  explicit Enter(const Builder& b) : linear(b / "enter", kIn, kSize, {}) {}
  State forward(State, const Context& context) override {
    return {{"x", linear.forward(context.batch.tensors.at("in"), context)}};
  }
  nn::StateSpec describe(const nn::StateSpec&, const nn::BatchShape& batch) const override {
    return {{.name = "x", .shape = {batch.rows, kSize}}};
  }
};

struct Block : nn::Layer {
  nn::Linear up, down;
  explicit Block(const Builder& b) : up(b / "up", kSize, 99, {}), down(b / "down", 99, kSize, {}) {}
  State forward(State in, const Context& context) override {
    return {{"x", in.at("x") + down.forward(at::tanh(up.forward(in.at("x"), context)), context)}};
  }
};

nn::ModelDef make_chain() {
  nn::ModelDef def;
  def.layers.push_back({"enter", false, [](Builder& b) { return std::make_unique<Enter>(b); }});
  for (int i = 0; i < kBlocks; ++i)
    def.layers.push_back({"block", true, [i](Builder& b) {
                            return std::make_unique<Block>(b / "block" / std::to_string(i));
                          }});
  def.policy = {{"*.up", nn::Style::column}, {"*.down", nn::Style::row}};
  def.loss = [](const State& out, const Batch& batch, const comm::Comm&) {
    return (out.at("x").sum(-1) - batch.tensors.at("wanted")).square().sum().to(at::kDouble);
  };
  def.loss_weight = [](const Batch& batch) { return batch.rows; };
  return def;
}

int main(int argc, char** argv) {
  const int pp = argc > 1 ? std::atoi(argv[1]) : 1, dp = argc > 2 ? std::atoi(argv[2]) : 1;
  const layout::Mesh shape({.pp = pp, .dp = dp, .tp = argc > 3 ? std::atoi(argv[3]) : 1});
  const auto schedule = schedule::generate("1f1b", {.ranks = pp, .micro_batches = kMicroBatches});
  dist::run_ranks(shape.size(), [&](dist::World& world) {
    dist::DeviceMesh mesh(world, shape);
    auto layers = layout::distribute_layers(kBlocks, pp);
    auto model = nn::build_model(make_chain(), mesh, {}, layers, schedule.rank_of_chunk);
    model->store.materialize(/*seed=*/7, /*gradients=*/true);
    optim::GradSync sync(world, mesh, model->store, /*zero_stage=*/0);
    pipeline::Executor executor(schedule, *model, mesh);
    for (int step = 0; step <= 50; ++step) {
      const at::Tensor in = at::sin(at::arange(16 * kIn)).view({16, kIn});
      std::vector<Batch> batches;  // this data rank's rows of the global batch
      for (const at::Tensor& part : in.chunk(kMicroBatches)) {
        at::Tensor rows = part.tensor_split(dp)[mesh.coord.dp];
        State tensors{{"in", rows}, {"wanted", at::sin(rows.sum(-1))}};
        batches.push_back({.tensors = tensors, .samples = {}, .rows = rows.size(0), .seq = 1});
      }
      sync.begin();
      double loss = executor.run(batches, {}, nn::Mode::train).loss();
      sync.finish();
      for (nn::Param* param : model->store.params()) param->data.sub_(param->grad, 0.002);
      if (world.rank() == 0 && step % 10 == 0) std::printf("step %2d  loss %.5f\n", step, loss);
    }
  });
}
