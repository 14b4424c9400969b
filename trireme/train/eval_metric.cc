#include "trireme/train/eval_metric.h"

#include <ATen/ATen.h>

#include <numeric>

namespace trireme::train {
namespace {

class Accuracy : public EvalMetric {
 public:
  int size() const override { return 2; }  // hits, counted

  std::vector<double> sums(const nn::State& outputs, const nn::Batch& batch,
                           const comm::Comm& tp) const override {
    const at::Tensor& logits = outputs.at("logits");
    const at::Tensor labels = batch.tensors.at("labels").flatten();
    auto [score, id] = logits.flatten(0, -2).to(at::kDouble).max(-1);

    // The best of the best of each tensor rank, whose ids follow on those of the ranks before.
    const auto ranks = static_cast<size_t>(tp.size());
    std::vector<int64_t> widths(ranks);
    const int64_t width = logits.size(-1), rows = labels.numel();
    tp.all_gather(&width, widths.data(), std::vector<int64_t>(ranks, 1), base::DType::i64).wait();
    const int64_t first = std::accumulate(widths.begin(), widths.begin() + tp.rank(), int64_t{0});
    const at::Tensor own = at::stack({score, (id + first).to(at::kDouble)}).contiguous();
    at::Tensor all = at::empty({tp.size(), 2, rows}, own.options());
    tp.all_gather(own.const_data_ptr(), all.mutable_data_ptr(),
                  std::vector<int64_t>(ranks, 2 * rows), base::DType::f64).wait();
    const at::Tensor best = std::get<1>(all.select(1, 0).max(0, /*keepdim=*/true));
    const at::Tensor guess = all.select(1, 1).gather(0, best).squeeze(0).to(at::kLong);

    const at::Tensor counted = labels.ne(data::kIgnoreLabel);
    const at::Tensor hits = guess.eq(labels).logical_and_(counted);
    return {static_cast<double>(hits.sum().item<int64_t>()),
            static_cast<double>(counted.sum().item<int64_t>())};
  }

  double value(const std::vector<double>& sums) const override { return sums[0] / sums[1]; }
};

}  // namespace

base::Registry<MakeEvalMetric>& eval_metrics() {
  static base::Registry<MakeEvalMetric> all(
      "train.evaluation.metrics", {{"accuracy", [] { return std::make_unique<Accuracy>(); }}});
  return all;
}

}  // namespace trireme::train
