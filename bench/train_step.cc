// Training steps of GPT-2 124M on one rank, driven by bench_train_step.py: each line of standard
// input is a number of steps; the answer is the seconds of the fastest of them. At the end of
// input: the peak resident bytes.
//
//   train_step THREADS BATCH SEQ DROPOUT
#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>

#include "trireme/kernels/allocator.h"
#include "trireme/schedule/generators.h"
#include "trireme/train/assembly.h"
#include "trireme/train/execute_pipeline.h"

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
        run_(train::assemble({{"family", "gpt2"},
                              {"resid_pdrop", dropout},
                              {"embd_pdrop", dropout},
                              {"attn_pdrop", dropout}},
                             {.mesh = layout::Mesh({1, 1, 1}),
                              .schedule = schedule::generate("gpipe", {.ranks = 1, .micro_batches = 1})},
                             seq, world_)) {
    train::make_parameters(*run_, true, nullptr);
    // PyTorch's step does not clip either.
    optimizer_ = std::make_unique<optim::ShardedOptimizer>(
        world_, run_->mesh, run_->model->store, config::Optim{.clip_grad_max_norm = std::nullopt}, 0);
    executor_ = std::make_unique<pipeline::Executor>(run_->schedule, *run_->model, run_->mesh);
    at::Tensor ids = at::randint(50257, {batch, seq + 1}, at::kLong);
    batch_.tensors.set("input_ids", ids.narrow(1, 0, seq).contiguous());
    batch_.tensors.set("labels", ids.narrow(1, 1, seq).contiguous());
    batch_.samples = at::arange(batch, at::kLong);
    batch_.rows = batch;
    batch_.seq = seq;
  }

  void step() {
    train::execute_pipeline(*executor_, *optimizer_, {&batch_, 1}, {.seed = 0, .step = step_++});
    optimizer_->step(1e-4);
  }

 private:
  dist::World world_;
  std::unique_ptr<train::Assembly> run_;
  std::unique_ptr<optim::ShardedOptimizer> optimizer_;
  std::unique_ptr<pipeline::Executor> executor_;
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
