// Training steps of a small GPT-2 (8 layers, hidden 512, vocabulary 8192) in a pipeline, one thread
// a rank; bench_pipeline.py starts it through `trireme launch` and drives rank 0: each line of
// standard input is a number of steps, the answer is the seconds of the fastest of them.
//
//   pipeline_step SCHEDULE CHUNKS MICRO_BATCHES SEQ
#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>

#include "trireme/base/error.h"
#include "trireme/dist/rendezvous.h"
#include "trireme/kernels/allocator.h"
#include "trireme/schedule/generators.h"
#include "trireme/train/assembly.h"
#include "trireme/train/execute_pipeline.h"

namespace {

using namespace trireme;

void serve(dist::World& world, const std::string& name, int chunks, int micro_batches, int64_t seq) {
  auto run = train::assemble(
      {{"family", "gpt2"}, {"n_layer", 8}, {"n_embd", 512}, {"n_head", 8}, {"n_positions", seq},
       {"vocab_size", 8192}, {"tie_word_embeddings", false}, {"resid_pdrop", 0.0},
       {"embd_pdrop", 0.0}, {"attn_pdrop", 0.0}},
      {.mesh = layout::Mesh({.pp = world.size(), .dp = 1, .tp = 1}),
       .schedule = schedule::generate(name, {.ranks = world.size(), .micro_batches = micro_batches,
                                             .chunks_per_rank = chunks})},
      seq, world);
  train::make_parameters(*run, true, nullptr);
  optim::ShardedOptimizer optimizer(world, run->mesh, run->model->store,
                                    config::Optim{.clip_grad_max_norm = std::nullopt}, 0);
  train::OverlappedSync overlap(optimizer.sync());
  pipeline::Executor executor(run->schedule, *run->model, run->mesh, {}, &overlap);
  std::vector<nn::Batch> batches;
  for (int64_t m = 0; m < micro_batches; ++m) {
    at::Tensor ids = (at::arange(seq + 1, at::kLong) * 7919 + m * 104729).remainder(8192).unsqueeze(0);
    batches.push_back({.tensors = {{"input_ids", ids.narrow(1, 0, seq).contiguous()},
                                   {"labels", ids.narrow(1, 1, seq).contiguous()}},
                       .samples = at::full({1}, m, at::kLong), .rows = 1, .seq = seq});
  }
  const comm::Comm& all = run->mesh.world;
  for (uint64_t step = 0;;) {
    int64_t steps = 0;
    if (world.rank() == 0) std::cin >> steps;
    all.broadcast(&steps, 1, base::DType::i64, 0).wait();
    if (steps == 0) return;
    double best = 1e9;
    for (int64_t i = 0; i < steps; ++i) {
      all.barrier();
      const auto begin = std::chrono::steady_clock::now();
      train::execute_pipeline(executor, optimizer, batches, {.seed = 0, .step = step++});
      optimizer.step(1e-4);
      all.barrier();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      best = std::min(best, took.count());
    }
    if (world.rank() == 0) std::printf("%.6f\n", best), std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: pipeline_step SCHEDULE CHUNKS MICRO_BATCHES SEQ\n");
    return 2;
  }
  try {
    kernels::install_caching_allocator();
    dist::set_rank_threads(1);
    dist::World world(dist::rendezvous_from_env(std::chrono::minutes(2)));
    serve(world, argv[1], std::stoi(argv[2]), std::stoi(argv[3]), std::stoll(argv[4]));
  } catch (const base::Error& error) {
    std::fprintf(stderr, "pipeline_step: %s\n", error.what());
    return error.exit_code();
  }
  return 0;
}
