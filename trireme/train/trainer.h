#pragma once
// The trainer: a run from its configuration to its last checkpoint, on one rank. Every rank of the job calls it.

#include <atomic>
#include <string>

#include "trireme/base/log.h"
#include "trireme/config/run_config.h"
#include "trireme/dist/world.h"
#include "trireme/train/prepare.h"

namespace trireme::train {

struct TrainOptions {
  bool resume = false;                        // go on from the newest checkpoint of output_dir
  const std::atomic<bool>* stop = nullptr;    // set by a signal: checkpoint after the current step, then return
};

struct TrainSummary {
  int64_t step = 0;             // finished steps
  double loss = 0;              // of the last step
  std::string checkpoint = {};  // the newest one's folder
  bool stopped = false;         // before its end, on request
};

/// Trains. Collective over the world. Writes into train.output_dir: config.yaml, metrics.jsonl, TensorBoard events,
/// logs and checkpoints. Errors before the first step as in prepare and open_resumed.
TrainSummary train(const config::RunConfig& config, dist::World& world, const TrainOptions& options,
                   base::Logger& log);
/// The same, of a run prepared for as many ranks as the world has.
TrainSummary train(const Prepared& run, dist::World& world, const TrainOptions& options, base::Logger& log);

}  // namespace trireme::train
