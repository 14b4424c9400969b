// Pretrains a small GPT-2 on an indexed dataset, on 2 tensor x 2 pipeline ranks that are threads of this
// process; the same call trains on processes and hosts when it is given their World.
//
//   pretrain out/data_train 4096 out/pretrain      (dataset, vocabulary size, folder of the run)

#include <cstdio>
#include <cstdlib>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/config/run_config.h"
#include "trireme/dist/world.h"
#include "trireme/train/trainer.h"

using namespace trireme;

config::RunConfig make_config(const char* dataset, int vocab_size, const char* folder) {
  config::RunConfig config;
  config.model = {{"family", "gpt2"}, {"n_layer", 4},       {"n_embd", 64},
                  {"n_head", 4},      {"n_positions", 128}, {"vocab_size", vocab_size}};
  config.data.train = {{.path = dataset}};
  config.data.seq_length = 64;
  config.train.output_dir = folder;
  config.train.train_iter = 50;
  config.train.train_micro_batch_size = 2;
  config.train.num_accumulation_steps = 4;  // micro-batches that fill the pipeline
  config.train.dist.tensor_parallel_size = 2;
  config.train.dist.pipeline_parallel_size = 2;
  config.optim.lr = 3e-3;
  return config;
}

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: pretrain DATASET VOCAB_SIZE FOLDER\n");
    return 2;
  }
  try {
    config::RunConfig config = make_config(argv[1], std::atoi(argv[2]), argv[3]);
    dist::run_ranks(4, [&](dist::World& world) {
      bool first = world.rank() == 0;
      base::Logger log("", first ? base::LogLevel::info : base::LogLevel::warning);
      train::TrainSummary run = train::train(config, world, {}, log);
      if (first) std::printf("loss %.4f, checkpoint %s\n", run.loss, run.checkpoint.c_str());
    });
  } catch (const base::Error& error) {
    std::fprintf(stderr, "pretrain: %s\n", error.what());
    return error.exit_code();
  }
  return 0;
}
