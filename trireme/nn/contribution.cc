#include "trireme/nn/contribution.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace trireme::nn {

namespace {

constexpr int64_t kBlock = 1 << 22;  // elements of a 16-bit product that are made at a time

}  // namespace

Contribution::Contribution(Param* param) : param_(param) {
  ++param->contributions;
  if (!param->frozen) replaces_ = !std::exchange(param->grad_begun, true);
}

void Contribution::add(const at::Tensor& piece) {
  if (!wanted()) return;
  begins() ? param_->grad.copy_(piece) : param_->grad.add_(piece);
}

void Contribution::add_rows(const at::Tensor& rows) {
  if (wanted()) add(rows.sum(0, false, param_->grad.scalar_type()));
}

void Contribution::add_product(const at::Tensor& a, const at::Tensor& b) {
  if (!wanted()) return;
  at::Tensor& grad = param_->grad;
  if (grad.scalar_type() == a.scalar_type()) {
    if (begins())
      at::mm_out(grad, a.t(), b);
    else
      grad.addmm_(a.t(), b);
    return;
  }
  const int64_t rows = std::max<int64_t>(1, kBlock / std::max<int64_t>(1, b.size(1)));
  const bool first = begins();
  for (int64_t begin = 0; begin < grad.size(0); begin += rows) {
    const int64_t count = std::min(rows, grad.size(0) - begin);
    const at::Tensor block = at::mm(a.narrow(1, begin, count).t(), b);
    at::Tensor part = grad.narrow(0, begin, count);
    first ? part.copy_(block) : part.add_(block);
  }
}

void Contribution::add_to_rows(const std::vector<layout::Range>& rows, const at::Tensor& piece) {
  if (!wanted()) return;
  at::Tensor& grad = memory();
  int64_t from = 0;
  for (layout::Range range : rows) {
    grad.narrow(0, range.begin, range.size()).add_(piece.narrow(0, from, range.size()));
    from += range.size();
  }
}

at::Tensor& Contribution::memory() {
  if (begins()) param_->grad.zero_();
  return param_->grad;
}

}  // namespace trireme::nn
