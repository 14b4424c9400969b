#include "trireme/nn/loss.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/data/batch.h"
#include "trireme/dist/redistribute.h"
#include "trireme/kernels/cross_entropy.h"
#include "trireme/nn/contribution.h"

namespace trireme::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Global ids as columns of a rank's logits, -1 where another rank has them.
at::Tensor local_targets(const at::Tensor& labels, int64_t first, int64_t columns) {
  at::Tensor target = labels - first;
  return target.masked_fill_(target.lt(0).logical_or_(target.ge(columns)), -1);
}

/// Of each row over all ranks, fp64 [rows]: the largest logit, the sum of exp(logit - largest) and the cross entropy.
struct RowTerms {
  at::Tensor peak, sum, loss;
};
RowTerms terms_of(const at::Tensor& rows, const at::Tensor& target, const comm::Comm& tp) {
  at::Tensor terms = kernels::softmax_terms(rows);
  at::Tensor own_peak = terms.select(1, 0).contiguous();
  at::Tensor peak = dist::all_reduce(own_peak, tp, comm::Reduce::max);
  // Beside the sum of the row: the label's logit, which one rank holds.
  at::Tensor parts = at::zeros_like(terms);
  parts.select(1, 0).copy_((own_peak - peak).exp_().mul_(terms.select(1, 1)));
  if (rows.size(1) > 0) {
    at::Tensor at_label = rows.gather(1, target.clamp_min(0).unsqueeze(1)).squeeze(1);
    parts.select(1, 1).copy_(at_label.to(at::kDouble).sub_(peak).masked_fill_(target.lt(0), 0));
  }
  parts = dist::all_reduce(parts, tp);
  at::Tensor sum = parts.select(1, 0).contiguous();
  return {.peak = peak, .sum = sum, .loss = sum.log().sub_(parts.select(1, 1))};
}

struct CrossEntropy : torch::autograd::Function<CrossEntropy> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits,
                            const at::Tensor& labels, int64_t first, const comm::Comm* tp) {
    at::Tensor rows = logits.detach().reshape({-1, logits.size(-1)});
    at::Tensor flat = labels.flatten(), counted = flat.ne(data::kIgnoreLabel);
    at::Tensor target = local_targets(flat, first, rows.size(1));
    RowTerms terms = terms_of(rows, target, *tp);
    ctx->save_for_backward({rows, terms.peak, terms.sum, target, counted});
    ctx->saved_data["shape"] = logits.sizes().vec();
    return terms.loss.masked_fill_(counted.logical_not(), 0).sum();
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    at::NoGradGuard no_grad;
    auto saved = ctx->get_saved_variables();
    at::Tensor rows = saved[0].detach();
    at::Tensor scale = saved[4].to(at::kDouble).mul_(grads[0]);
    at::AutoDispatchBelowADInplaceOrView unseen;  // that the logits change is no autograd's business
    kernels::softmax_gradient(rows, saved[1], saved[2], scale, saved[3]);
    return {rows.view(ctx->saved_data["shape"].toIntVector()), {}, {}, {}};
  }
};

/// Rows at a time; the same on every rank. Each turn reads and writes the whole gradient of the table, so what two turns
/// would take is done in one.
int64_t rows_at_a_time(const VocabHead& head, int64_t rows, const comm::Comm& tp) {
  const int64_t columns = layout::split_range(head.table->spec.shape[0], tp.size(), 0).size();
  const int64_t all = rows * columns * (head.soft_cap > 0 ? 2 : 1);
  if (all <= 2 * head.elements) return std::max<int64_t>(1, rows);
  const int64_t turns = (all + head.elements - 1) / head.elements;
  return (rows + turns - 1) / turns;
}

struct HeadCrossEntropy : torch::autograd::Function<HeadCrossEntropy> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& /*anchor*/, VocabHead head,
                            const at::Tensor& labels, const comm::Comm* tp, std::optional<double> factor) {
    at::Tensor flat = labels.flatten(), places = flat.ne(data::kIgnoreLabel).nonzero().select(1, 0);
    at::Tensor rows = x.detach().reshape({-1, x.size(-1)}), table = head.table->data;
    at::Tensor loss = at::zeros({}, at::kDouble), gradient;
    std::optional<Contribution> of_table, of_bias;
    if (factor) {
      gradient = at::zeros(rows.sizes(), rows.options());
      of_table.emplace(head.table);
      if (head.bias) of_bias.emplace(head.bias);
    }
    const int64_t count = places.numel(), step = rows_at_a_time(head, count, *tp);
    for (int64_t begin = 0; begin < count; begin += step) {
      at::Tensor place = places.narrow(0, begin, std::min(step, count - begin));
      at::Tensor inputs = rows.index_select(0, place);
      at::Tensor target = local_targets(flat.index_select(0, place), head.first, table.size(0));
      at::Tensor logits =
          head.bias ? at::addmm(head.bias->data, inputs, table.t()) : at::mm(inputs, table.t());
      at::Tensor slope;
      if (head.soft_cap > 0) {
        logits.div_(head.soft_cap).tanh_();
        if (factor) slope = logits.square().neg_().add_(1);
        logits.mul_(head.soft_cap);
      }
      RowTerms terms = terms_of(logits, target, *tp);
      loss.add_(terms.loss.sum());
      if (!factor) continue;
      kernels::softmax_gradient(logits, terms.peak, terms.sum,
                                at::full({place.numel()}, *factor, at::kDouble), target);
      if (slope.defined()) logits.mul_(slope);
      of_table->add_product(logits, inputs);
      if (of_bias) of_bias->add_rows(logits);
      gradient.index_copy_(0, place, at::mm(logits, table));
    }
    if (factor && count == 0) {
      if (of_table->wanted()) of_table->memory();
      if (of_bias && of_bias->wanted()) of_bias->memory();
    }
    if (factor) {
      ctx->save_for_backward({gradient.view(x.sizes())});
      ctx->saved_data["factor"] = *factor;
    }
    return loss;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    base::check(ctx->saved_data.count("factor") == 1, "a loss that was asked for alone has no backward pass");
    const double given = grads[0].item<double>(), factor = ctx->saved_data["factor"].toDouble();
    base::check(given == factor, "gradients were made for a loss times {}, not {}", factor, given);
    return {ctx->get_saved_variables()[0].detach(), {}, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor cross_entropy_sum(const at::Tensor& logits, const at::Tensor& labels, int64_t first,
                             const comm::Comm& tp) {
  return CrossEntropy::apply(logits, labels, first, &tp);
}

at::Tensor head_cross_entropy_sum(const at::Tensor& x, const VocabHead& head, const at::Tensor& labels,
                                  const comm::Comm& tp, const Context& context) {
  base::check(context.loss_request.has_value(), "nobody asked for the loss alone");
  return HeadCrossEntropy::apply(x, context.anchor, head, labels, &tp, context.loss_request->factor);
}

int64_t count_labels(const at::Tensor& labels) {
  return labels.ne(data::kIgnoreLabel).sum().item<int64_t>();
}

}  // namespace trireme::nn
