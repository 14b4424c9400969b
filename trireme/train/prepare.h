#pragma once
// Prepared: a run thought through before any rank starts. Its configuration is resolved for a
// number of ranks, its data are open, and whatever can be known to be wrong has been refused. No
// tensor is made and nothing is written, so a launcher and a dry run can do the same as the ranks.
//
//   Prepared run = prepare(config, ranks);
//   std::optional<checkpoint::Checkpoint> from = open_resumed(run, resume);

#include <memory>
#include <optional>

#include "trireme/data/loader.h"
#include "trireme/train/assembly.h"

namespace trireme::train {

struct Prepared {
  config::RunConfig config;  // resolved: what the run's config.yaml holds
  config::BatchPlan plan;
  config::RunLength length;
  base::Json model;  // the tree
  Placement placement;
  layout::ModelDescription description;
  std::shared_ptr<const data::Dataset> train_data;
  data::Identity train_identity;  // of train_data: reads its whole index, so once a run
  std::shared_ptr<const data::Dataset> valid_data;  // null: no evaluation
};

/// ConfigError and FormatError for what cannot be: layout, batch, length and schedule of the run,
/// the model, the optimizer and its groups, missing or damaged datasets, a tokenizer that cannot be read or has more tokens than
/// the model's vocabulary. Local.
Prepared prepare(const config::RunConfig& given, int ranks);

/// The checkpoint that the run goes on from; nothing for a run that starts. ConfigError when the
/// run's folder holds a run and `resume` is not set, or when the checkpoint is of another model,
/// optimizer, seed or data. Local.
std::optional<checkpoint::Checkpoint> open_resumed(const Prepared& run, bool resume);

}  // namespace trireme::train
