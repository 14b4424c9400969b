#include "trireme/nn/loss.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "trireme/data/batch.h"
#include "trireme/dist/redistribute.h"
#include "trireme/kernels/cross_entropy.h"

namespace trireme::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct CrossEntropy : torch::autograd::Function<CrossEntropy> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits,
                            const at::Tensor& labels, int64_t first, const comm::Comm* tp) {
    at::Tensor rows = logits.detach().reshape({-1, logits.size(-1)});
    at::Tensor target = labels.flatten();
    at::Tensor counted = target.ne(data::kIgnoreLabel);
    target = target - first;
    at::Tensor elsewhere = target.lt(0).logical_or_(target.ge(rows.size(1)));
    target.masked_fill_(elsewhere, -1);

    at::Tensor terms = kernels::softmax_terms(rows);
    at::Tensor own_peak = terms.select(1, 0).contiguous();
    at::Tensor peak = dist::all_reduce(own_peak, *tp, comm::Reduce::max);
    // Beside the sum of the row: the label's logit, which one rank holds.
    at::Tensor parts = at::zeros_like(terms);
    parts.select(1, 0).copy_((own_peak - peak).exp_().mul_(terms.select(1, 1)));
    if (rows.size(1) > 0) {
      at::Tensor at_label = rows.gather(1, target.clamp_min(0).unsqueeze(1)).squeeze(1);
      parts.select(1, 1).copy_(at_label.to(at::kDouble).sub_(peak).masked_fill_(elsewhere, 0));
    }
    parts = dist::all_reduce(parts, *tp);
    at::Tensor sum = parts.select(1, 0).contiguous();
    at::Tensor loss = sum.log().sub_(parts.select(1, 1)).masked_fill_(counted.logical_not(), 0);
    ctx->save_for_backward({rows, peak, sum, target, counted});
    ctx->saved_data["shape"] = logits.sizes().vec();
    return loss.sum();
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    at::NoGradGuard no_grad;
    auto saved = ctx->get_saved_variables();
    at::Tensor rows = saved[0].detach();
    at::Tensor scale = saved[4].to(at::kDouble).mul_(grads[0].item<double>());
    kernels::softmax_gradient(rows, saved[1], saved[2], scale, saved[3]);
    return {rows.view(ctx->saved_data["shape"].toIntVector()), {}, {}, {}};
  }
};

}  // namespace

at::Tensor cross_entropy_sum(const at::Tensor& logits, const at::Tensor& labels, int64_t first,
                             const comm::Comm& tp) {
  return CrossEntropy::apply(logits, labels, first, &tp);
}

int64_t count_labels(const at::Tensor& labels) {
  return labels.ne(data::kIgnoreLabel).sum().item<int64_t>();
}

}  // namespace trireme::nn
