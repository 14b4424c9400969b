#include "tests/ranks/pipeline_support.h"

#include <fmt/format.h>

#include <cmath>
#include <mutex>

#include "trireme/base/error.h"
#include "trireme/data/batch.h"
#include "trireme/layout/stage_manager.h"
#include "trireme/nn/layers.h"
#include "trireme/nn/loss.h"

namespace trireme::pipeline::testing {

namespace {

constexpr int64_t kVocab = 11, kHidden = 6;

using nn::Builder;
using nn::Context;
using nn::State;

nn::Param* table(const Builder& b, const char* scope) {
  return (b / scope).param("weight", {kVocab, kHidden}, layout::Init::normal(0.5),
                           layout::Sbp::invariant());
}

class Embed : public nn::Layer {
 public:
  Embed(const Builder& b, const ChainOptions& options)
      : options_(options), table_(table(b, "embed")) {}

  State forward(State, const Context& context) override {
    const at::Tensor& ids = context.batch.tensors.at("input_ids");
    at::Tensor x = nn::embedding(ids, table_, 0, context);
    return {{options_.hidden, x},
            {"skip", at::sin(x)},
            {"ids", ids},
            {"odd", ids.remainder(2).eq(1)},
            {"scale", at::scalar_tensor(0.5, at::kDouble)},
            {"nothing", at::empty({0, 3}, at::kDouble)}};
  }
  nn::StateSpec describe(const nn::StateSpec&, const nn::BatchShape& shape) const override {
    using base::DType;
    const auto [rows, seq, source_seq] = shape;
    return {{options_.hidden, {rows, seq, kHidden}, DType::f64, true},
            {"skip", {rows, options_.lie ? seq + 1 : seq, kHidden}, DType::f64, true},
            {"ids", {rows, seq}, DType::i64, false},
            {"odd", {rows, seq}, DType::boolean, false},
            {"scale", {}, DType::f64, false},
            {"nothing", {0, 3}, DType::f64, false}};
  }

 private:
  ChainOptions options_;
  nn::Param* table_;
};

class Block : public nn::Layer {
 public:
  Block(const Builder& b, const ChainOptions& options)
      : options_(options),
        layer_(b.layer_index()),
        linear_(b / "linear", kHidden, kHidden, {.init = layout::Init::normal(0.4)}),
        norm_(b / "norm", kHidden, 1e-5) {}

  State forward(State in, const Context& context) override {
    at::Tensor x = in.at(options_.hidden);
    at::Tensor y = at::tanh(linear_.forward(norm_.forward(x, context), context)) * in.at("scale");
    in.set(options_.hidden, x + nn::dropout(y, options_.dropout, layer_, 0, 0, context));
    return in;
  }

 private:
  ChainOptions options_;
  int layer_;
  nn::Linear linear_;
  nn::LayerNorm norm_;
};

class Head : public nn::Layer {
 public:
  Head(const Builder& b, const ChainOptions& options)
      : options_(options), table_(table(b, options.tied ? "embed" : "head")) {}

  State forward(State in, const Context& context) override {
    at::Tensor x = in.at(options_.hidden) + in.at("skip") * in.at("ids").unsqueeze(-1).remainder(3);
    base::check(in.at("odd").equal(in.at("ids").remainder(2).eq(1)), "a mask arrived otherwise than it was sent");
    return {{"logits", nn::linear(x, table_, nullptr, nn::Orientation::out_in, context)}};
  }

 private:
  ChainOptions options_;
  nn::Param* table_;
};

}  // namespace

nn::ModelDef chain(const ChainOptions& options) {
  nn::ModelDef def;
  def.layers.push_back(
      {"embed", false, [=](Builder& b) { return std::make_unique<Embed>(b, options); }});
  for (int i = 0; i < options.blocks; ++i)
    def.layers.push_back({fmt::format("block.{}", i), true, [=](Builder& b) {
                            return std::make_unique<Block>(b / "block" / std::to_string(i),
                                                           options);
                          }});
  def.layers.push_back(
      {"head", false, [=](Builder& b) { return std::make_unique<Head>(b, options); }});
  def.loss = [](const State& out, const nn::Batch& batch, const comm::Comm& tp) {
    return nn::cross_entropy_sum(out.at("logits"), batch.tensors.at("labels"), 0, tp);
  };
  def.loss_weight = [](const nn::Batch& batch) {
    return nn::count_labels(batch.tensors.at("labels"));
  };
  return def;
}

std::vector<nn::Batch> make_batches(int count, int64_t rows, int64_t first_sample) {
  std::vector<nn::Batch> batches;
  int64_t sample = first_sample;
  for (int m = 0; m < count; ++m) {
    data::Batch batch;
    const int64_t seq = 3 + m % 2;
    data::Field ids{"input_ids", {rows, seq}, {}}, labels{"labels", {rows, seq}, {}};
    for (int64_t r = 0; r < rows; ++r, ++sample) {
      batch.samples.push_back(sample);
      for (int64_t t = 0; t < seq; ++t) {
        ids.values.push_back((sample * 7 + t * 5 + m) % kVocab);
        labels.values.push_back((sample + t) % (2 + sample % 3) == 0
                                    ? data::kIgnoreLabel
                                    : (sample * 3 + t + 1) % kVocab);
      }
    }
    batch.fields = {ids, labels};
    batches.push_back(nn::to_tensors(batch));
  }
  return batches;
}

Outcome run(const Job& job, const std::vector<std::vector<nn::Batch>>& batches) {
  const schedule::Schedule& schedule = job.schedule;
  layout::Mesh shape({.pp = schedule.ranks, .dp = job.dp, .tp = 1});
  Outcome outcome;
  outcome.losses.resize(shape.size());
  outcome.executed.resize(shape.size());
  outcome.peak_live.resize(shape.size());
  std::mutex mutex;
  dist::run_ranks(shape.size(), [&](dist::World& world) {
    dist::DeviceMesh mesh(world, shape);
    const int blocks = job.pair ? job.pair->encoder + job.pair->decoder : job.chain.blocks;
    auto model = nn::build_model(
        job.pair ? encoder_decoder(*job.pair) : chain(job.chain), mesh, {.dtype = base::DType::f64},
        job.blocks_per_chunk.value_or(layout::distribute_layers(blocks, schedule.chunks)),
        schedule.rank_of_chunk);
    model->store.materialize(3, true);
    Executor executor(schedule, *model, mesh, job.stage);
    RunOptions options = job.run;
    options.record = true;
    StepResult result =
        executor.run(batches[mesh.coord.dp], {.seed = 5, .step = 2}, job.mode, options);

    std::lock_guard lock(mutex);
    outcome.losses[world.rank()] = result.loss();
    outcome.peak_live[world.rank()] = result.peak_live;
    for (const schedule::Span& span : result.executed)
      outcome.executed[world.rank()].push_back(span.action);
    for (nn::Param* param : model->store.params()) {
      auto [entry, added] = outcome.gradients.try_emplace(param->spec.name, param->grad);
      if (!added) entry->second = entry->second + param->grad;
    }
    if (mesh.coord.pp == schedule.rank_of_chunk.back() && mesh.coord.dp == 0)
      outcome.result = std::move(result);
  });
  return outcome;
}

double error(const Gradients& a, const Gradients& b) {
  double squares = 0, count = 0, worst = 0;
  for (const auto& [name, tensor] : b) {
    squares += tensor.square().sum().item<double>();
    count += static_cast<double>(tensor.numel());
  }
  for (const auto& [name, tensor] : b) {
    auto other = a.find(name);
    if (other == a.end() || a.size() != b.size()) return INFINITY;
    const double floor =
        1e-3 * std::sqrt(squares / count) * std::sqrt(static_cast<double>(tensor.numel()));
    const double difference = (other->second - tensor).norm().item<double>();
    worst = std::max(worst, difference / std::max(tensor.norm().item<double>(), floor));
  }
  return worst;
}

}  // namespace trireme::pipeline::testing
