#include "trireme/nn/loss.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "trireme/data/batch.h"
#include "trireme/dist/redistribute.h"

namespace trireme::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct CrossEntropy : torch::autograd::Function<CrossEntropy> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits, const at::Tensor& labels, int64_t first,
                            const comm::Comm* tp) {
    at::Tensor rows = logits.reshape({-1, logits.size(-1)});
    if (rows.scalar_type() == at::kHalf || rows.scalar_type() == at::kBFloat16) rows = rows.to(at::kFloat);
    at::Tensor target = labels.flatten();
    at::Tensor counted = target.ne(data::kIgnoreLabel);
    at::Tensor local = target - first;
    at::Tensor here = local.ge(0).logical_and_(local.lt(rows.size(1)));
    local = local.masked_fill(here.logical_not(), 0).unsqueeze(1);

    at::Tensor peak = dist::all_reduce(rows.amax(1, true), *tp, comm::Reduce::max);
    // exp(logits - peak) is the numerator of the softmax; the backward needs nothing else of the logits.
    at::Tensor weights = at::sub(rows, peak).exp_();
    at::Tensor own_logit = rows.gather(1, local).sub_(peak).masked_fill_(here.logical_not().unsqueeze(1), 0);
    at::Tensor sums = dist::all_reduce(at::cat({weights.sum(1, true), own_logit}, 1), *tp);
    at::Tensor loss = sums.select(1, 0).log().sub_(sums.select(1, 1)).masked_fill_(counted.logical_not(), 0);
    ctx->save_for_backward({weights, sums.narrow(1, 0, 1), local, here, counted});
    ctx->saved_data["type"] = static_cast<int64_t>(logits.scalar_type());
    ctx->saved_data["shape"] = logits.sizes().vec();
    return loss.sum(at::kDouble);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    at::NoGradGuard no_grad;
    auto saved = ctx->get_saved_variables();
    const at::Tensor &weights = saved[0], &sum = saved[1], &local = saved[2], &here = saved[3], &counted = saved[4];
    at::Tensor scale = counted.to(weights.scalar_type()).mul_(grads[0].item<double>()).unsqueeze(1);
    at::Tensor gradient = weights.mul_(scale / sum);
    gradient.scatter_add_(1, local, scale.mul(here.unsqueeze(1)).neg_());
    auto type = static_cast<at::ScalarType>(ctx->saved_data["type"].toInt());
    return {gradient.to(type).view(ctx->saved_data["shape"].toIntVector()), {}, {}, {}};
  }
};

}  // namespace

at::Tensor cross_entropy_sum(const at::Tensor& logits, const at::Tensor& labels, int64_t first, const comm::Comm& tp) {
  return CrossEntropy::apply(logits, labels, first, &tp);
}

int64_t count_labels(const at::Tensor& labels) { return labels.ne(data::kIgnoreLabel).sum().item<int64_t>(); }

}  // namespace trireme::nn
