// Training steps of any model on any layout, driven by bench_train_step.py and bench_pipeline.py (through `trireme
// launch` where there are several ranks): each line of rank 0's standard input is a number of steps; the answer is the
// seconds of the fastest of them. At the end of input: the peak resident bytes of rank 0.
//
//   train_step JOB, as JSON: see Job.
#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/json.h"
#include "trireme/data/batch.h"
#include "trireme/dist/rendezvous.h"
#include "trireme/kernels/allocator.h"
#include "trireme/schedule/generators.h"
#include "trireme/train/assembly.h"
#include "trireme/train/execute_pipeline.h"

namespace {

using namespace trireme;

struct Job {
  base::Json model;         // its tree
  base::Json inputs;        // of one micro-batch: {"labels": {"shape": [4, 64], "below": 50257, "counted": 0.15}};
                            // without "below" normal, without "counted" all count
  int threads = 1;          // of a rank
  int pp = 1;               // other ranks are data parallel
  int micro_batches = 1;
  std::string schedule = "1f1b";
  int chunks = 1;
  std::optional<std::vector<int>> blocks = {};  // of each chunk; none: shared evenly
  int zero_stage = 0;
  std::string dtype = "fp32";  // of the weights; bf16 has fp32 masters
};

Job job_of(const base::Json& json) {
  Job job{.model = json.at("model"), .inputs = json.at("inputs")};
  job.threads = json.value("threads", job.threads);
  job.pp = json.value("pp", job.pp);
  job.micro_batches = json.value("micro_batches", job.micro_batches);
  job.schedule = json.value("schedule", job.schedule);
  job.chunks = json.value("chunks", job.chunks);
  if (json.contains("blocks")) job.blocks = json.at("blocks").get<std::vector<int>>();
  job.zero_stage = json.value("zero_stage", job.zero_stage);
  job.dtype = json.value("dtype", job.dtype);
  return job;
}

nn::Batch batch_of(const base::Json& inputs) {
  nn::Batch batch;
  for (const auto& [name, input] : inputs.items()) {
    const auto shape = input.at("shape").get<std::vector<int64_t>>();
    at::Tensor tensor = input.contains("below") ? at::randint(input.at("below").get<int64_t>(), shape, at::kLong) : at::randn(shape);
    if (input.contains("counted")) tensor.masked_fill_(at::rand(shape).gt(input.at("counted").get<double>()), data::kIgnoreLabel);
    batch.tensors.set(name, tensor);
    batch.rows = shape[0];
  }
  const nn::BatchShape shape = nn::shape_of(batch.tensors);
  batch.seq = shape.seq;
  batch.source_seq = shape.source_seq;
  batch.samples = at::arange(batch.rows, at::kLong);
  return batch;
}

int64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  return 0;
}

void serve(dist::World& world, const Job& job) {
  std::vector<nn::Batch> batches;
  for (int m = 0; m < job.micro_batches; ++m) batches.push_back(batch_of(job.inputs));
  auto run = train::assemble(
      job.model,
      {.mesh = layout::Mesh({.pp = job.pp, .dp = world.size() / job.pp, .tp = 1}),
       .schedule = schedule::generate(
           job.schedule,
           {.ranks = job.pp, .micro_batches = job.micro_batches, .chunks_per_rank = job.chunks}),
       .blocks_per_chunk = job.blocks,
       .options = {.dtype = base::dtype_of(job.dtype)}},
      batches[0].seq, world);
  train::make_parameters(*run, true, nullptr, job.zero_stage);
  // The peers do not clip either.
  optim::ShardedOptimizer optimizer(world, run->mesh, run->model->store,
                                    config::Optim{.clip_grad_max_norm = std::nullopt}, job.zero_stage);
  train::OverlappedSync overlap(optimizer.sync(), run->parameters.get());
  pipeline::Executor executor(run->schedule, *run->model, run->mesh, {}, &overlap);
  const comm::Comm& all = run->mesh.world;
  for (uint64_t step = 0;;) {
    int64_t steps = 0;
    if (world.rank() == 0) std::cin >> steps;
    all.broadcast(&steps, 1, base::DType::i64, 0).wait();
    if (steps == 0) break;
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
  if (world.rank() == 0) std::printf("%lld\n", static_cast<long long>(peak_resident_bytes()));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: train_step JOB (JSON)\n");
    return 2;
  }
  try {
    const Job job = job_of(base::Json::parse(argv[1]));
    kernels::install_caching_allocator();
    dist::set_rank_threads(job.threads);
    dist::World world(dist::rendezvous_from_env(std::chrono::minutes(2)));
    serve(world, job);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train_step: %s\n", error.what());
    return 1;
  }
  return 0;
}
