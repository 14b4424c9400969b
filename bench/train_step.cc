// Training steps of GPT-2 124M on one rank, driven by bench_train_step.py: each line of standard
// input is a number of steps; the answer is the seconds of the fastest of them. At the end of
// input: the peak resident bytes.
//
//   train_step THREADS BATCH SEQ DROPOUT
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>

#include "trireme/base/error.h"
#include "trireme/dist/world.h"
#include "trireme/kernels/allocator.h"
#include "trireme/models/registry.h"
#include "trireme/nn/builder.h"
#include "trireme/optim/sharded_optimizer.h"

namespace {

using namespace trireme;

int64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  return 0;
}

class Trainer {
 public:
  Trainer(int64_t batch, int64_t seq, double dropout)
      : world_(dist::World::single()),
        mesh_(world_, layout::Mesh({1, 1, 1})),
        model_(nn::build_model(models::make_model({{"family", "gpt2"},
                                                   {"resid_pdrop", dropout},
                                                   {"embd_pdrop", dropout},
                                                   {"attn_pdrop", dropout}},
                                                  1),
                               mesh_, {}, {12}, {0})) {
    model_->store.materialize(0, true);
    optimizer_ = std::make_unique<optim::ShardedOptimizer>(
        world_, mesh_, model_->store, config::Optim{.clip_grad_max_norm = std::nullopt}, 0);
    at::Tensor ids = at::randint(50257, {batch, seq + 1}, at::kLong);
    batch_.tensors.set("input_ids", ids.narrow(1, 0, seq).contiguous());
    batch_.tensors.set("labels", ids.narrow(1, 1, seq).contiguous());
    batch_.samples = at::arange(batch, at::kLong);
    batch_.rows = batch;
    batch_.seq = seq;
  }

  double step() {
    nn::Context context{.batch = batch_, .random = {.seed = 0, .step = step_++}};
    context.anchor = at::ones({}).requires_grad_(true);
    model_->store.zero_grad();
    optimizer_->sync().begin(1);
    auto& layers = model_->chunks[0];
    std::vector<nn::State> inputs(layers.size()), outputs(layers.size());
    nn::State state;
    for (size_t i = 0; i < layers.size(); ++i) {
      for (auto& [name, tensor] : state.tensors()) tensor = tensor.detach().requires_grad_(true);
      inputs[i] = state;
      outputs[i] = state = layers[i]->forward(std::move(state), context);
    }
    at::Tensor loss = model_->def.loss(state, batch_, mesh_.tp);
    state = {};
    at::Tensor gradient =
        at::full_like(loss, 1.0 / static_cast<double>(batch_.samples.numel() * batch_.seq));
    torch::autograd::backward({loss}, {gradient});
    // The loss went through the last layer; the others are segments of their own.
    outputs.back() = {};
    for (size_t i = layers.size() - 1; i-- > 0;) {
      at::Tensor grad = inputs[i + 1].at("hidden").grad();
      inputs[i + 1] = {};
      torch::autograd::backward({outputs[i].at("hidden")}, {grad});
      outputs[i] = {};
    }
    optimizer_->step(1e-4);
    return loss.item<double>();
  }

 private:
  dist::World world_;
  dist::DeviceMesh mesh_;
  std::unique_ptr<nn::Model> model_;
  std::unique_ptr<optim::ShardedOptimizer> optimizer_;
  nn::Batch batch_;
  uint64_t step_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: train_step THREADS BATCH SEQ DROPOUT\n");
    return 2;
  }
  try {
    kernels::install_caching_allocator();
    dist::set_rank_threads(std::stoi(argv[1]));
    Trainer trainer(std::stoll(argv[2]), std::stoll(argv[3]), std::stod(argv[4]));
    for (int64_t steps; std::cin >> steps;) {
      double best = 1e9;
      for (int64_t i = 0; i < steps; ++i) {
        const auto begin = std::chrono::steady_clock::now();
        trainer.step();
        best = std::min(
            best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
      }
      std::printf("%.6f\n", best);
      std::fflush(stdout);
    }
    std::printf("%lld\n", static_cast<long long>(peak_resident_bytes()));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train_step: %s\n", error.what());
    return 1;
  }
}
