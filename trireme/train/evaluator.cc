#include "trireme/train/evaluator.h"

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/data/causal.h"
#include "trireme/schedule/generators.h"

namespace trireme::train {

double Evaluation::perplexity() const { return std::exp(loss); }

Evaluator::Evaluator(Assembly& assembly, std::shared_ptr<const data::Dataset> dataset, const config::BatchPlan& plan,
                     std::optional<int64_t> samples)
    : assembly_(assembly),
      dataset_(std::move(dataset)),
      plan_(plan),
      executor_(schedule::forward_only(assembly.schedule, static_cast<int>(plan.micro_batches)),
                *assembly.model, assembly.mesh) {
  samples_ = std::min(samples.value_or(dataset_->size()), dataset_->size());
  if (samples_ == 0) throw base::ConfigError(dataset_->description() + " holds no whole sample to evaluate on");
}

Evaluation Evaluator::run() {
  const dist::DeviceMesh& mesh = assembly_.mesh;
  data::Loader loader(dataset_, {.micro_batch_size = plan_.micro_batch_size,
                                 .micro_batches = plan_.micro_batches,
                                 .dp_rank = mesh.coord.dp,
                                 .dp_size = mesh.mesh.size(layout::Axis::dp),
                                 .end_sample = samples_});
  double sum = 0;
  Evaluation evaluation;
  for (int64_t seen = 0; seen < samples_; seen += plan_.global_batch_size) {
    pipeline::StepResult result = executor_.run(to_tensors(loader.next()), {}, nn::Mode::eval);
    sum += result.loss_sum;
    evaluation.tokens += result.weight;
  }
  evaluation.loss = sum / static_cast<double>(evaluation.tokens);
  return evaluation;
}

std::shared_ptr<const data::Dataset> open_data(const config::RunConfig& config,
                                               const std::vector<config::DataSource>& sources, bool shuffle,
                                               int64_t vocab_size) {
  std::vector<data::Source> opened;
  for (const config::DataSource& source : sources) opened.push_back({source.path, source.weight});
  return data::open_datasets(opened, {.seq_length = config.data.seq_length,
                                      .seed = static_cast<uint64_t>(config.train.seed),
                                      .shuffle = shuffle,
                                      .vocab_size = vocab_size});
}

std::vector<nn::Batch> to_tensors(const std::vector<data::Batch>& micro_batches) {
  std::vector<nn::Batch> out;
  for (const data::Batch& batch : micro_batches) out.push_back(nn::to_tensors(batch));
  return out;
}

}  // namespace trireme::train
