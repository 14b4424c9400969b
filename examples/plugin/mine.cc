// A plugin: a model family, a dataset, an optimizer, a learning-rate schedule, a metric and a hook of
// one's own, for run.yaml to name. Each works on every layout without knowing any.

#include <ATen/ATen.h>

#include <fstream>

#include "trireme/base/error.h"
#include "trireme/base/plugin.h"
#include "trireme/data/dataset.h"
#include "trireme/models/family.h"
#include "trireme/nn/layers.h"
#include "trireme/nn/loss.h"
#include "trireme/optim/lr.h"
#include "trireme/optim/optimizers.h"
#include "trireme/train/eval_metric.h"
#include "trireme/train/hook.h"

namespace {

using namespace trireme;
using nn::Builder, nn::Context, nn::State;

// --- a model: each token predicts the next one through blocks of two linears

struct Config {
  int64_t layers = 1, width = 16, vocab_size = 0;
};

Config read(const base::Json& tree) {
  Config config;
  models::ConfigReader keys(tree, "token_mlp");
  keys("layers", config.layers);
  keys("width", config.width);
  keys("vocab_size", config.vocab_size);
  keys.finish();
  return config;
}

struct Enter : nn::Layer {
  Config config;
  Builder builder;
  nn::VocabTable table;
  Enter(const Builder& b, const Config& c)
      : config(c), builder(b), table(b / "tokens", c.vocab_size, c.width, layout::Init::normal(0.2)) {}
  State forward(State, const Context& context) override {
    return {{"hidden", table.embed(context.batch.tensors.at("input_ids"), context)}};
  }
  nn::StateSpec describe(const nn::StateSpec&, const nn::BatchShape& shape) const override {
    return {{"hidden", {shape.rows, nn::stream_range(builder, shape.seq).size(), config.width},
             builder.options().dtype, true}};
  }
};

struct Block : nn::Layer {
  nn::LayerNorm norm;
  nn::Linear up, down;
  Block(const Builder& b, const Config& c)
      : norm(b / "norm", c.width, 1e-5), up(b / "up", c.width, 4 * c.width, {}), down(b / "down", 4 * c.width, c.width, {}) {}
  State forward(State in, const Context& context) override {
    const at::Tensor& x = in.at("hidden");
    return {{"hidden", x + down.forward(at::relu(up.forward(norm.forward(x, context), context)), context)}};
  }
};

struct Leave : nn::Layer {
  Config config;
  Builder builder;
  nn::VocabTable head;
  Leave(const Builder& b, const Config& c)
      : config(c), builder(b), head(b / "head", c.vocab_size, c.width, layout::Init::normal(0.02)) {}
  State forward(State in, const Context& context) override {
    return {{"logits", head.logits(in.at("hidden"), context)}};
  }
  nn::StateSpec describe(const nn::StateSpec&, const nn::BatchShape& shape) const override {
    const auto local = layout::split_range(config.vocab_size, builder.tp().size(), builder.tp().rank());
    return {{"logits", {shape.rows, shape.seq, local.size()}, builder.options().dtype, true}};
  }
};

nn::ModelDef make_model(const base::Json& tree, int /*tp*/) {
  const Config c = read(tree);
  nn::ModelDef def;
  def.layers.push_back({"enter", false, [c](Builder& b) { return std::make_unique<Enter>(b, c); }});
  for (int64_t i = 0; i < c.layers; ++i)
    def.layers.push_back({"block", true, [c, i](Builder& b) { return std::make_unique<Block>(b / "blocks" / std::to_string(i), c); }});
  def.layers.push_back({"leave", false, [c](Builder& b) { return std::make_unique<Leave>(b, c); }});
  def.policy = {{"*tokens", nn::Style::vocab}, {"*head", nn::Style::vocab}, {"*.up", nn::Style::column}, {"*.down", nn::Style::row}};
  def.loss = [c](const State& out, const nn::Batch& batch, const comm::Comm& tp) {
    const auto local = layout::split_range(c.vocab_size, tp.size(), tp.rank());
    return nn::cross_entropy_sum(out.at("logits"), batch.tensors.at("labels"), local.begin, tp);
  };
  def.loss_weight = [](const nn::Batch& batch) { return nn::count_labels(batch.tensors.at("labels")); };
  def.vocab_size = c.vocab_size;
  return def;
}

base::Json resolve_model(const base::Json& tree) {
  const Config c = read(tree);
  return {{"model_type", "token_mlp"}, {"layers", c.layers}, {"width", c.width}, {"vocab_size", c.vocab_size}};
}

// --- a dataset: sample i counts on from i

class Counting : public data::Dataset {
 public:
  Counting(int64_t modulus, const data::SampleOptions& options) : modulus_(modulus), options_(options) {
    if (modulus < 1 || modulus > options.vocab_size)
      throw base::ConfigError(fmt::format("counting: modulus {} is not in the vocabulary of {}", modulus, options.vocab_size));
  }
  int64_t size() const override { return modulus_; }
  std::vector<data::FieldSpec> fields() const override { return data::causal_fields(options_.seq_length); }
  std::string description() const override { return fmt::format("counting modulo {}", modulus_); }
  data::Identity identity() const override { return {.seq_length = options_.seq_length, .sources = {}}; }
  void read(int64_t index, data::Row row) const override {
    for (int64_t j = 0; j < options_.seq_length; ++j) {
      row[0].ids[j] = (index + j) % modulus_;
      row[1].ids[j] = (index + j + 1) % modulus_;
    }
  }

 private:
  int64_t modulus_;
  data::SampleOptions options_;
};

// --- an optimizer: steps by the sign of the gradient

class SignSgd : public optim::Optimizer {
 public:
  explicit SignSgd(double threshold) : threshold_(threshold) {}
  std::vector<optim::State> states(const layout::ParamSpec&) const override { return {}; }
  std::vector<std::string> state_names() const override { return {}; }
  void step(std::span<const optim::Segment> segments, double lr, int64_t, double grad_scale) const override {
    for (const optim::Segment& s : segments) {
      const at::Tensor grad = s.grad * grad_scale;
      s.data.sub_(grad.sign().mul_(grad.abs().gt(threshold_)), lr * s.lr_scale);
    }
  }

 private:
  double threshold_;
};

// --- a metric: the mean of 1 / (place of the right token among all)

class ReciprocalRank : public train::EvalMetric {
 public:
  int size() const override { return 2; }
  std::vector<double> sums(const State& outputs, const nn::Batch& batch, const comm::Comm& tp) const override {
    const at::Tensor logits = outputs.at("logits").flatten(0, -2), labels = batch.tensors.at("labels").flatten();
    int64_t vocab = logits.size(-1);
    tp.all_reduce(&vocab, 1, base::DType::i64).wait();
    const auto local = layout::split_range(vocab, tp.size(), tp.rank());
    const at::Tensor own = labels.ge(local.begin).logical_and_(labels.lt(local.end));
    at::Tensor right = logits.gather(1, (labels - local.begin).clamp_(0, logits.size(1) - 1).unsqueeze(1)).squeeze(1);
    right = right.masked_fill(own.logical_not(), 0).to(at::kDouble).contiguous();
    tp.all_reduce(right.mutable_data_ptr(), right.numel(), base::DType::f64).wait();
    at::Tensor place = logits.to(at::kDouble).gt(right.unsqueeze(1)).sum(1).contiguous();
    tp.all_reduce(place.mutable_data_ptr(), place.numel(), base::DType::i64).wait();
    return {(1.0 / (place + 1).to(at::kDouble)).sum().item<double>(), static_cast<double>(labels.numel())};
  }
  double value(const std::vector<double>& sums) const override { return sums[0] / sums[1]; }
};

// --- a hook: keeps a diary

class Diary : public train::Hook {
 public:
  void before_train(const train::Moment& at) override { write(at, "begun"); }
  void before_step(const train::Moment&) override { ++begun_; }
  void after_step(const train::Moment&, const train::StepMetrics&) override { ++ended_; }
  void before_evaluation(const train::Moment& at) override { write(at, "evaluating"); }
  void after_evaluation(const train::Moment& at, const train::EvalMetrics& found) override {
    write(at, fmt::format("step {}: {:.3f}", at.step, found.eval_loss));
  }
  void after_train(const train::Moment& at) override {
    write(at, fmt::format("done, {} steps begun, {} ended", begun_, ended_));
  }

 private:
  static void write(const train::Moment& at, const std::string& line) {
    if (at.assembly.mesh.world.rank() != 0) return;
    std::ofstream(at.config.train.output_dir + "/diary.txt", std::ios::app) << line << "\n";
  }

  int begun_ = 0, ended_ = 0;
};

}  // namespace

TRIREME_PLUGIN() {
  models::families().add("token_mlp", {make_model, resolve_model});
  data::dataset_types().add("counting", [](const std::string&, const base::Json& options, const data::SampleOptions& run) {
    return std::make_shared<Counting>(options.value("modulus", int64_t{10}), run);
  });
  optim::optimizers().add("sign_sgd", [](const config::Optim& options, const optim::WholeTensors&) {
    return std::make_unique<SignSgd>(options.options.value("threshold", 0.0));
  });
  optim::shapes().add("halving", {[](const optim::Curve& curve, int64_t t) {
    return curve.base * std::pow(0.5, static_cast<double>(t / curve.keys.options.value("every", int64_t{100})));
  }});
  train::eval_metrics().add("reciprocal_rank", [] { return std::make_unique<ReciprocalRank>(); });
  train::hooks().add("diary", [](const config::RunConfig&) { return std::make_unique<Diary>(); });
}
