// Checkpoints of GPT-2 124M with AdamW's state on one rank, driven by bench_checkpoint.py: each line
// of standard input is what to do, the answer is its seconds. In FOLDER, which must exist.
//
//   checkpoint THREADS FOLDER
//
// save: until all is durable. load: into the memory of a run. start: what an asynchronous save
// keeps training from. bytes: the size of the state, in place of seconds.
#include <ATen/ATen.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <string>

#include "trireme/checkpoint/save.h"
#include "trireme/kernels/allocator.h"
#include "trireme/nn/tensor_part.h"
#include "trireme/optim/sharded_optimizer.h"
#include "trireme/schedule/generators.h"
#include "trireme/train/assembly.h"

namespace {

using namespace trireme;

class Run {
 public:
  explicit Run(const std::string& folder)
      : world_(dist::World::single()),
        run_(train::assemble(
            {{"family", "gpt2"}},
            {.mesh = layout::Mesh({1, 1, 1}),
             .schedule = schedule::generate("gpipe", {.ranks = 1, .micro_batches = 1})},
            64, world_)),
        saver_(run_->mesh.world) {
    train::make_parameters(*run_, true, nullptr);
    optimizer_ = std::make_unique<optim::ShardedOptimizer>(world_, run_->mesh, run_->model->store,
                                                           config::Optim{}, 0);
    request_.root = folder;
    request_.parameters = nn::parts_of(run_->model->store, run_->mesh.coord);
    request_.optimizer = optimizer_->state();
    for (nn::TensorPart& part : request_.optimizer) part.data.uniform_();
    request_.manifest.step = 1;
    request_.manifest.mesh = run_->mesh.mesh;
    request_.manifest.description = run_->description;
    request_.manifest.model_config = {{"model_type", "gpt2"}};
  }

  int64_t bytes() const {
    int64_t sum = 0;
    for (const auto* parts : {&request_.parameters, &request_.optimizer})
      for (const nn::TensorPart& part : *parts) sum += static_cast<int64_t>(part.data.nbytes());
    return sum;
  }
  void save() { path_ = saver_.save(request_); }
  void start() { saver_.start(request_); }
  void finish() {
    if (saver_.in_flight()) path_ = saver_.finish();
  }
  void load() {
    const checkpoint::Checkpoint checkpoint(path_);
    checkpoint::load_parameters(checkpoint, request_.parameters, run_->description.parameters);
    checkpoint::load_optimizer(checkpoint, request_.optimizer);
  }

 private:
  dist::World world_;
  std::unique_ptr<train::Assembly> run_;
  std::unique_ptr<optim::ShardedOptimizer> optimizer_;
  checkpoint::SaveRequest request_;
  checkpoint::Saver saver_;
  std::string path_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: checkpoint THREADS FOLDER\n");
    return 2;
  }
  try {
    kernels::install_caching_allocator();
    dist::set_rank_threads(std::stoi(argv[1]));
    Run run(argv[2]);
    const std::map<std::string, std::function<void()>> actions = {{"save", [&] { run.save(); }},
                                                                  {"load", [&] { run.load(); }},
                                                                  {"start", [&] { run.start(); }}};
    for (std::string line; std::getline(std::cin, line);) {
      if (line == "bytes") {
        std::printf("%lld\n", static_cast<long long>(run.bytes()));
      } else {
        const auto begin = std::chrono::steady_clock::now();
        actions.at(line)();
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
        run.finish();
        std::printf("%.6f\n", seconds.count());
      }
      std::fflush(stdout);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "checkpoint: %s\n", error.what());
    return 1;
  }
}
