#include "trireme/train/evaluator.h"

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/data/dataset.h"
#include "trireme/dist/device.h"
#include "trireme/schedule/generators.h"

namespace trireme::train {

namespace {

void add(std::vector<double>& sums, const std::vector<double>& more) {
  base::check(sums.size() == more.size(), "a metric of {} sums gave {}", sums.size(), more.size());
  for (size_t i = 0; i < sums.size(); ++i) sums[i] += more[i];
}

/// Metrics count on the host.
nn::State on_host(nn::State state) {
  for (auto& [name, tensor] : state.tensors()) tensor = dist::to_host(tensor);
  return state;
}

nn::Batch on_host(nn::Batch batch) {
  batch.tensors = on_host(std::move(batch.tensors));
  batch.samples = dist::to_host(batch.samples);
  return batch;
}

}  // namespace

double Evaluation::perplexity() const { return std::exp(loss); }

Evaluator::Evaluator(Assembly& assembly, std::shared_ptr<const data::Dataset> dataset, const config::BatchPlan& plan,
                     std::optional<int64_t> samples, const std::vector<std::string>& metrics)
    : assembly_(assembly),
      dataset_(std::move(dataset)),
      plan_(plan),
      executor_(schedule::forward_only(assembly.schedule, static_cast<int>(plan.micro_batches)),
                *assembly.model, assembly.mesh, {}, assembly.parameters.get()) {
  samples_ = std::min(samples.value_or(dataset_->size()), dataset_->size());
  if (samples_ == 0) throw base::ConfigError(dataset_->description() + " holds no whole sample to evaluate on");
  for (const std::string& name : metrics) metrics_.emplace_back(name, eval_metrics().get(name)());
}

Evaluation Evaluator::run() {
  const dist::DeviceMesh& mesh = assembly_.mesh;
  data::Loader loader(dataset_, {.micro_batch_size = plan_.micro_batch_size,
                                 .micro_batches = plan_.micro_batches,
                                 .dp_rank = mesh.coord.dp,
                                 .dp_size = mesh.mesh.size(layout::Axis::dp),
                                 .end_sample = samples_,
                                 .skip = assembly_.model->foreign_inputs(),
                                 .stand_in = assembly_.model->options.expert_axis == layout::Axis::dp});
  pipeline::LossTerms terms;
  Evaluation evaluation;
  std::vector<std::vector<double>> sums;
  for (const auto& [name, metric] : metrics_) sums.emplace_back(metric->size());
  for (int64_t seen = 0; seen < samples_; seen += plan_.global_batch_size) {
    std::vector<nn::Batch> batches = to_tensors(loader.next(), mesh.device);
    // What a model draws here follows the sample, however many of them a step of this layout holds.
    for (nn::Batch& batch : batches) batch.samples = batch.samples + seen;
    pipeline::StepResult result =
        executor_.run(batches, {}, nn::Mode::eval, {.outputs = !metrics_.empty()});
    terms.add(result.terms);
    for (size_t b = 0; b < result.outputs.size(); ++b)
      if (batches[b].rows > 0)
        for (size_t m = 0; m < metrics_.size(); ++m)
          add(sums[m], metrics_[m].second->sums(on_host(result.outputs[b]), on_host(batches[b]), mesh.tp));
  }
  evaluation.loss = terms.mean();
  const std::vector<nn::BatchTensor>& wanted = assembly_.model->def.trains_on;
  evaluation.of_tokens = wanted.empty() || std::ranges::any_of(wanted, [](const auto& one) { return one.name == "labels" && one.dims == 1; });
  evaluation.tokens = terms.weights.front();
  for (size_t m = 0; m < metrics_.size(); ++m) {
    // Tensor ranks of the last stage hold the same sums: one of them counts.
    if (mesh.coord.tp != 0) std::ranges::fill(sums[m], 0.0);
    mesh.world.all_reduce(sums[m].data(), std::ssize(sums[m]), base::DType::f64).wait();
    evaluation.values.emplace_back(metrics_[m].first, metrics_[m].second->value(sums[m]));
  }
  return evaluation;
}

std::shared_ptr<const data::Dataset> open_data(const config::RunConfig& config,
                                               const std::vector<config::DataSource>& sources, bool shuffle,
                                               int64_t vocab_size) {
  base::Json common = config.data.dataset;
  const std::string name = common.value("name", "tokens");
  common.erase("name");
  const config::Train& train = config.train;
  int64_t samples = 0;
  if (shuffle && train.train_iter && train.global_batch_size) samples = *train.train_iter * *train.global_batch_size;
  if (shuffle && train.train_samples) samples = *train.train_samples;
  std::vector<data::Source> opened;
  for (const config::DataSource& source : sources) {
    base::Json options = source.type.value_or(name) == name ? common : base::Json::object();
    options.update(source.options);
    opened.push_back({source.path, source.weight, source.type.value_or(name), std::move(options)});
  }
  return data::open_datasets(opened,
                             {.seq_length = config.data.seq_length,
                              .seed = static_cast<uint64_t>(config.train.seed),
                              .shuffle = shuffle,
                              .vocab_size = vocab_size,
                              .tokenizer = config.tokenizer.value_or(""),
                              .run_samples = samples},
                             data::blend_rule_of(config.data.blend));
}

std::vector<nn::Batch> to_tensors(const std::vector<data::Batch>& micro_batches, c10::Device device) {
  std::vector<nn::Batch> out;
  for (const data::Batch& batch : micro_batches) out.push_back(nn::to_tensors(batch, device));
  return out;
}

}  // namespace trireme::train
