#include "trireme/train/eval_metric.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/data/measures.h"
#include "trireme/dist/redistribute.h"

namespace trireme::train {
namespace {

constexpr int64_t kMostClasses = 100;  // of those that count pairs of classes

/// Scores of classes, whole on every rank; ConfigError where the head gives none.
at::Tensor scores_of(const nn::State& outputs, const char* metric) {
  if (!outputs.has("scores"))
    throw base::ConfigError(fmt::format(
        "train.evaluation.metrics: {} needs scores of classes; use it with a classification head",
        metric));
  return outputs.at("scores").to(at::kDouble);
}

/// How many entries of its row come before each label, by score and of equal ones by id. [items]
at::Tensor places(const nn::State& outputs, const at::Tensor& labels, const comm::Comm& tp) {
  // What is split by vocabulary is gathered by counting: no rank sees all of a row.
  const bool whole = outputs.has("scores");
  const at::Tensor rows = outputs.at(whole ? "scores" : "logits").to(at::kDouble).flatten(0, -2);
  const int64_t width = rows.size(1);
  std::vector<int64_t> widths(tp.size());
  tp.all_gather(&width, widths.data(), std::vector<int64_t>(tp.size(), 1), base::DType::i64).wait();
  int64_t first = 0;
  for (int rank = 0; rank < tp.rank() && !whole; ++rank) first += widths[rank];
  auto sum = [&](const at::Tensor& t) { return whole ? t : dist::all_reduce(t.contiguous(), tp); };
  const at::Tensor own = labels - first, here = own.ge(0).logical_and(own.lt(width));
  at::Tensor at_label = at::zeros({rows.size(0)}, rows.options());
  if (width > 0)
    at_label = rows.gather(1, own.clamp(0, width - 1).unsqueeze(1))
                   .squeeze(1)
                   .masked_fill(here.logical_not(), 0);
  at_label = sum(at_label).unsqueeze(1);
  const at::Tensor before =
      at::arange(first, first + width, at::kLong).unsqueeze(0).lt(labels.unsqueeze(1));
  return sum(
      rows.gt(at_label).logical_or(rows.eq(at_label).logical_and(before)).sum(1).to(at::kDouble));
}

/// The share of labels among the k highest scores of their row.
class TopK : public EvalMetric {
 public:
  explicit TopK(int64_t k) : k_(k) {}
  int size() const override { return 2; }  // hits, counted
  std::vector<double> sums(const nn::State& outputs, const nn::Batch& batch,
                           const comm::Comm& tp) const override {
    const at::Tensor labels = batch.tensors.at("labels").flatten(),
                     counted = labels.ne(data::kIgnoreLabel);
    const at::Tensor hits =
        places(outputs, labels, tp).lt(static_cast<double>(k_)).logical_and(counted);
    return {static_cast<double>(hits.sum().item<int64_t>()),
            static_cast<double>(counted.sum().item<int64_t>())};
  }
  double value(const std::vector<double>& sums) const override { return sums[0] / sums[1]; }

 private:
  int64_t k_;
};

/// What follows from the counts of right and guessed classes.
class OfClasses : public EvalMetric {
 public:
  using Value = double (*)(const data::Confusion&);
  OfClasses(const char* name, Value value) : name_(name), value_(value) {}
  int size() const override { return static_cast<int>(kMostClasses * kMostClasses); }
  std::vector<double> sums(const nn::State& outputs, const nn::Batch& batch,
                           const comm::Comm&) const override {
    const at::Tensor scores = scores_of(outputs, name_).flatten(0, -2);
    if (scores.size(1) > kMostClasses)
      throw base::ConfigError(
          fmt::format("train.evaluation.metrics: {} counts at most {} classes, but the head has {}",
                      name_, kMostClasses, scores.size(1)));
    const at::Tensor labels = batch.tensors.at("labels").flatten(),
                     counted = labels.ne(data::kIgnoreLabel);
    const at::Tensor pairs = (labels * kMostClasses + scores.argmax(1)).masked_select(counted);
    const at::Tensor counts = at::bincount(pairs, {}, size()).to(at::kDouble).contiguous();
    return {counts.const_data_ptr<double>(), counts.const_data_ptr<double>() + size()};
  }
  double value(const std::vector<double>& sums) const override {
    data::Confusion all(kMostClasses);
    for (int64_t i = 0; i < size(); ++i)
      all.add(i / kMostClasses, i % kMostClasses, std::llround(sums[i]));
    return value_(all);
  }

 private:
  const char* name_;
  Value value_;
};

/// Linear correlation of a regression's numbers with the labels.
class Pearson : public EvalMetric {
 public:
  int size() const override { return 6; }
  std::vector<double> sums(const nn::State& outputs, const nn::Batch& batch,
                           const comm::Comm&) const override {
    const at::Tensor x = scores_of(outputs, "pearson").flatten(),
                     y = batch.tensors.at("labels").to(at::kDouble).flatten();
    auto sum = [](const at::Tensor& t) { return t.sum().item<double>(); };
    return {static_cast<double>(x.numel()), sum(x), sum(y), sum(x * x), sum(y * y), sum(x * y)};
  }
  double value(const std::vector<double>& s) const override {
    const double spread = (s[0] * s[3] - s[1] * s[1]) * (s[0] * s[4] - s[2] * s[2]);
    return spread > 0 ? (s[0] * s[5] - s[1] * s[2]) / std::sqrt(spread)
                      : std::numeric_limits<double>::quiet_NaN();
  }
};

/// The share of rows whose first and last token of the answer are both right.
class ExactMatch : public EvalMetric {
 public:
  int size() const override { return 2; }
  std::vector<double> sums(const nn::State& outputs, const nn::Batch& batch,
                           const comm::Comm&) const override {
    const at::Tensor scores = scores_of(outputs, "exact_match");
    if (!batch.tensors.has("start_positions"))
      throw base::ConfigError(
          "train.evaluation.metrics: exact_match needs start_positions and end_positions; use it "
          "with question_answering");
    const at::Tensor best = scores.argmax(1);
    const at::Tensor hits =
        best.select(1, 0)
            .eq(batch.tensors.at("start_positions"))
            .logical_and(best.select(1, 1).eq(batch.tensors.at("end_positions")));
    return {static_cast<double>(hits.sum().item<int64_t>()), static_cast<double>(hits.numel())};
  }
  double value(const std::vector<double>& sums) const override { return sums[0] / sums[1]; }
};

MakeEvalMetric of_classes(const char* name, OfClasses::Value value) {
  return [name, value] { return std::make_unique<OfClasses>(name, value); };
}

}  // namespace

base::Registry<MakeEvalMetric>& eval_metrics() {
  static base::Registry<MakeEvalMetric> all(
      "train.evaluation.metrics",
      {{"accuracy", [] { return std::make_unique<TopK>(1); }},
       {"top5_accuracy", [] { return std::make_unique<TopK>(5); }},
       {"f1", of_classes("f1", [](const data::Confusion& c) { return c.f1(1); })},
       {"macro_f1", of_classes("macro_f1", [](const data::Confusion& c) { return c.macro_f1(); })},
       {"matthews", of_classes("matthews", [](const data::Confusion& c) { return c.matthews(); })},
       {"pearson", [] { return std::make_unique<Pearson>(); }},
       {"exact_match", [] { return std::make_unique<ExactMatch>(); }}});
  return all;
}

}  // namespace trireme::train
