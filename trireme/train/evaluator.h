#pragma once
// Evaluator: the mean loss of a model over a dataset's counted tokens, the same on every layout.

#include <memory>
#include <optional>

#include "trireme/data/loader.h"
#include "trireme/pipeline/executor.h"
#include "trireme/train/assembly.h"
#include "trireme/train/eval_metric.h"

namespace trireme::train {

struct Evaluation {
  double loss = 0;     // mean over counted tokens; the sum of such means where the loss has several terms
  int64_t tokens = 0;  // counted, in the first term
  bool of_tokens = true;  // else of rows, pictures, pixels: no perplexity
  std::vector<std::pair<std::string, double>> values = {};  // of the metrics, by name
  double perplexity() const;
};

class Evaluator {
 public:
  /// `assembly` outlives it. `samples`: the first ones, of which an evaluation is made; nothing: the whole dataset
  /// once. The dataset must hold at least one sample. `metrics`: names of eval_metrics(), measured beside the loss.
  Evaluator(Assembly& assembly, std::shared_ptr<const data::Dataset> dataset, const config::BatchPlan& plan,
            std::optional<int64_t> samples, const std::vector<std::string>& metrics = {});
  /// Collective over the world; between training steps.
  Evaluation run();

 private:
  Assembly& assembly_;
  std::shared_ptr<const data::Dataset> dataset_;
  config::BatchPlan plan_;
  int64_t samples_;
  pipeline::Executor executor_;
  std::vector<std::pair<std::string, std::unique_ptr<EvalMetric>>> metrics_;
};

/// A configuration's datasets as samples of data.seq_length tokens. `shuffle` for training; ids must be below
/// `vocab_size`.
std::shared_ptr<const data::Dataset> open_data(const config::RunConfig& config,
                                               const std::vector<config::DataSource>& sources, bool shuffle,
                                               int64_t vocab_size);

/// The loader's micro-batches as tensors on a device.
std::vector<nn::Batch> to_tensors(const std::vector<data::Batch>& micro_batches, c10::Device device = c10::kCPU);

}  // namespace trireme::train
