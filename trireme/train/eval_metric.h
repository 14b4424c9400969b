#pragma once
// EvalMetric: what an evaluation measures beside the loss: a number made of sums over samples, so
// that it is the same however samples are spread over micro-batches and ranks.

#include <functional>
#include <memory>
#include <vector>

#include "trireme/base/registry.h"
#include "trireme/comm/comm.h"
#include "trireme/nn/state.h"

namespace trireme::train {

class EvalMetric {
 public:
  virtual ~EvalMetric() = default;
  /// How many sums there are.
  virtual int size() const = 0;
  /// Those of a micro-batch. `outputs` is what the model's last layer returned, split over `tp` as that
  /// layer leaves it. On the last stage; collective over `tp`, whose ranks return the same.
  virtual std::vector<double> sums(const nn::State& outputs, const nn::Batch& batch,
                                   const comm::Comm& tp) const = 0;
  /// From the sums over all samples.
  virtual double value(const std::vector<double>& sums) const = 0;
  /// Which way the best lies (train.checkpointer.keep_best).
  virtual bool higher_is_better() const { return true; }
};

/// All of them by the name that train.evaluation.metrics gives them. `accuracy`, `top5_accuracy`: the share of
/// counted labels with the highest score, or one of the five highest (of equal ones the lowest id goes first). Of
/// classifications: `f1` of class 1, `macro_f1`, `matthews`; `pearson` of a regression; `exact_match` of answers
/// in a text (both ends).
using MakeEvalMetric = std::function<std::unique_ptr<EvalMetric>()>;
base::Registry<MakeEvalMetric>& eval_metrics();

}  // namespace trireme::train
