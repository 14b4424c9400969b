// Training steps of a model on one rank, driven by bench_train_step.py: each line of standard input
// is a number of steps; the answer is the seconds of the fastest of them. At the end of input: the
// peak resident bytes. MODEL is a configuration's `model` as JSON; TASK says what a batch holds:
//   causal_lm  BATCH x SEQ tokens, each of which is predicted
//   masked_lm  BATCH x SEQ tokens, of which 15 in a hundred are predicted
//   seq2seq    BATCH x SEQ tokens and as many of a target
//   images     BATCH images of SEQ x SEQ points and a class of each
//
//   train_step THREADS MODEL TASK BATCH SEQ
#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>

#include "trireme/base/json.h"
#include "trireme/data/batch.h"
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

nn::Batch make_batch(const std::string& task, int64_t vocab, int64_t rows, int64_t size) {
  nn::Batch batch;
  const auto tokens = [&] { return at::randint(vocab, {rows, size}, at::kLong); };
  if (task == "images") {
    batch.tensors.set("pixel_values", at::randn({rows, 3, size, size}));
    batch.tensors.set("labels", at::randint(1000, {rows}, at::kLong));
  } else {
    at::Tensor ids = tokens(), labels = task == "causal_lm" ? ids.roll(-1, 1) : tokens();
    if (task == "causal_lm") labels.select(1, size - 1).fill_(data::kIgnoreLabel);
    if (task == "masked_lm") labels.masked_fill_(at::rand({rows, size}).gt(0.15), data::kIgnoreLabel);
    if (task == "seq2seq") batch.tensors.set("decoder_input_ids", tokens());
    batch.tensors.set("input_ids", ids);
    batch.tensors.set("labels", labels);
  }
  batch.samples = at::arange(rows, at::kLong);
  const nn::BatchShape shape = nn::shape_of(batch.tensors);
  batch.rows = rows;
  batch.seq = shape.seq;
  batch.source_seq = shape.source_seq;
  return batch;
}

class Trainer {
 public:
  Trainer(const base::Json& model, const std::string& task, int64_t rows, int64_t size)
      : world_(dist::World::single()),
        run_(train::assemble(model,
                             {.mesh = layout::Mesh({1, 1, 1}),
                              .schedule = schedule::generate("gpipe", {.ranks = 1, .micro_batches = 1})},
                             task == "images" ? 1 : size, world_)),
        batch_(make_batch(task, run_->model->def.vocab_size, rows, size)) {
    train::make_parameters(*run_, true, nullptr);
    // PyTorch's step does not clip either.
    optimizer_ = std::make_unique<optim::ShardedOptimizer>(
        world_, run_->mesh, run_->model->store, config::Optim{.clip_grad_max_norm = std::nullopt}, 0);
    executor_ = std::make_unique<pipeline::Executor>(run_->schedule, *run_->model, run_->mesh);
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
  if (argc != 6) {
    std::fprintf(stderr, "usage: train_step THREADS MODEL TASK BATCH SEQ\n");
    return 2;
  }
  try {
    kernels::install_caching_allocator();
    dist::set_rank_threads(std::stoi(argv[1]));
    Trainer trainer(base::Json::parse(argv[2]), argv[3], std::stoll(argv[4]), std::stoll(argv[5]));
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
