#include "trireme/kernels/expressions.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "trireme/base/error.h"

namespace trireme::kernels::expressions {
namespace {

constexpr int64_t kLow = 0xFFFFFFFF;  // the low word of a product

at::ScalarType wide(const at::Tensor& t) { return t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

/// The tensor over `count` elements that a piece points to.
at::Tensor array(const void* data, int64_t count, at::ScalarType type, c10::Device device) {
  if (data == nullptr) return {};
  return at::from_blob(const_cast<void*>(data), {count}, [](void*) {}, at::TensorOptions(type).device(device), device);
}

/// Calls body(piece, param, grad, state 0, state 1) for pieces that are not empty; arrays they lack are undefined.
template <class Body>
void for_each_piece(std::span<const Piece> pieces, at::ScalarType type, c10::Device device, const Body& body) {
  at::NoGradGuard no_grad;
  for (const Piece& piece : pieces) {
    if (piece.count == 0) continue;
    const auto of = [&](const void* data) { return array(data, piece.count, type, device); };
    body(piece, of(piece.param), of(piece.grad), of(piece.state[0]), of(piece.state[1]));
  }
}

}  // namespace

std::array<at::Tensor, 4> philox(uint64_t key, std::array<at::Tensor, 4> c) {
  auto k0 = static_cast<int64_t>(key & kLow), k1 = static_cast<int64_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    // Products of two words take 64 bits, of which int64 keeps every one.
    const at::Tensor p0 = c[0] * int64_t{0xD2511F53}, p1 = c[2] * int64_t{0xCD9E8D57};
    const auto high = [](const at::Tensor& p) { return p.bitwise_right_shift(32).bitwise_and(kLow); };
    c = {high(p1).bitwise_xor(c[1]).bitwise_xor(k0), p1.bitwise_and(kLow),
         high(p0).bitwise_xor(c[3]).bitwise_xor(k1), p0.bitwise_and(kLow)};
    k0 = (k0 + 0x9E3779B9) & kLow;
    k1 = (k1 + 0xBB67AE85) & kLow;
  }
  return c;
}

void dropout(const at::Tensor& x, at::Tensor& out, double p, const MaskCoordinates& where) {
  const auto places = at::TensorOptions(at::kLong).device(x.device());
  const int64_t d = x.size(-1), c = x.dim() >= 3 ? x.size(-2) : 1, b = x.dim() == 4 ? x.size(1) : 1;
  const int64_t first = where.origin_d / 4, words = (where.origin_d + d + 3) / 4 - first;
  const auto made = philox(where.key, {at::arange(first, first + words, places),
                                       at::arange(where.origin_c, where.origin_c + c, places).view({c, 1}),
                                       at::arange(where.origin_b, where.origin_b + b, places).view({b, 1, 1}),
                                       where.samples.view({-1, 1, 1, 1})});
  const at::Tensor kept = at::stack({made[0], made[1], made[2], made[3]}, -1)
                              .flatten(-2)
                              .narrow(-1, where.origin_d % 4, d)
                              .ge(static_cast<int64_t>(p * 0x1p32))
                              .view(x.sizes());
  out.copy_(x.to(wide(x)).mul(1 / (1 - p)).masked_fill(kept.logical_not(), 0));
}

at::Tensor gelu_tanh(const at::Tensor& x) { return at::gelu(x, "tanh"); }

at::Tensor gelu_tanh_backward(const at::Tensor& x, const at::Tensor& gradient) {
  return at::gelu_backward(gradient, x, "tanh");
}

at::Tensor softmax_terms(const at::Tensor& logits) {
  constexpr double kNothing = -std::numeric_limits<double>::infinity();
  at::Tensor out = at::empty({logits.size(0), 2}, at::TensorOptions(at::kDouble).device(logits.device()));
  at::Tensor peak = out.select(1, 0), sum = out.select(1, 1);
  peak.fill_(kNothing);
  sum.zero_();
  if (logits.size(1) == 0) return out;
  const at::Tensor values = logits.to(wide(logits)), largest = values.amax(1);
  peak.copy_(largest);
  sum.copy_((values - largest.unsqueeze(1)).exp_().sum(1, false, at::kDouble).masked_fill_(peak.eq(kNothing), 0));
  return out;
}

void softmax_gradient(at::Tensor& logits, const at::Tensor& peak, const at::Tensor& sum, const at::Tensor& scale,
                      const at::Tensor& target) {
  at::NoGradGuard no_grad;
  const int64_t columns = logits.size(1);
  if (columns == 0) return;
  const at::ScalarType type = wide(logits);
  at::Tensor gradient = (logits.to(type) - peak.to(type).unsqueeze(1)).exp_().mul_((scale / sum).to(type).unsqueeze(1));
  const at::Tensor here = target.ge(0).logical_and_(target.lt(columns));
  const at::Tensor place = target.clamp(0, columns - 1).unsqueeze(1);
  gradient.scatter_add_(1, place, scale.to(type).neg().masked_fill_(here.logical_not(), 0).unsqueeze(1));
  logits.copy_(gradient.masked_fill_(scale.eq(0).unsqueeze(1), 0));
}

void adam(std::span<const Piece> pieces, at::ScalarType type, const Adam& rule, double grad_scale, c10::Device device) {
  const double correction1 = 1 - std::pow(rule.beta1, rule.step), correction2 = 1 - std::pow(rule.beta2, rule.step);
  for_each_piece(pieces, type, device, [&](const Piece& piece, at::Tensor p, at::Tensor g, at::Tensor m, at::Tensor v) {
    const double lr = rule.lr * piece.lr_scale;
    at::Tensor grad = g * grad_scale;
    if (!rule.decoupled) grad.add_(p, piece.weight_decay);
    m.mul_(rule.beta1).add_(grad, 1 - rule.beta1);
    v.mul_(rule.beta2).addcmul_(grad, grad, 1 - rule.beta2);
    if (rule.decoupled) p.mul_(1 - lr * piece.weight_decay);
    p.addcdiv_(m, v.sqrt().mul_(1 / std::sqrt(correction2)).add_(rule.eps), -lr / correction1);
  });
}

void sgd(std::span<const Piece> pieces, at::ScalarType type, const Sgd& rule, double grad_scale, c10::Device device) {
  for_each_piece(pieces, type, device, [&](const Piece& piece, at::Tensor p, at::Tensor g, at::Tensor buffer, at::Tensor) {
    at::Tensor step = (g * grad_scale).add_(p, piece.weight_decay);
    if (buffer.defined()) {
      buffer.mul_(rule.momentum).add_(step);
      step = rule.nesterov ? step.add_(buffer, rule.momentum) : buffer;
    }
    p.sub_(step, rule.lr * piece.lr_scale);
  });
}

void lion(std::span<const Piece> pieces, at::ScalarType type, const Lion& rule, double grad_scale, c10::Device device) {
  for_each_piece(pieces, type, device, [&](const Piece& piece, at::Tensor p, at::Tensor g, at::Tensor m, at::Tensor) {
    const double lr = rule.lr * piece.lr_scale;
    const at::Tensor grad = g * grad_scale, sign = (m * rule.beta1).add_(grad, 1 - rule.beta1).sign_();
    m.mul_(rule.beta2).add_(grad, 1 - rule.beta2);
    p.mul_(1 - lr * piece.weight_decay).sub_(sign, lr);
  });
}

void average(std::span<const Piece> pieces, at::ScalarType type, double decay, c10::Device device) {
  for_each_piece(pieces, type, device, [&](const Piece&, at::Tensor p, at::Tensor value, at::Tensor, at::Tensor) {
    p.mul_(decay).add_(value, 1 - decay);
  });
}

NormTerm norm_term(std::span<const Piece> pieces, at::ScalarType type, Norm kind, c10::Device device) {
  std::vector<at::Tensor> found;  // of each piece: its term, and the sum of magnitudes, which shows what is not finite
  for_each_piece(pieces, type, device, [&](const Piece&, at::Tensor, at::Tensor g, at::Tensor, at::Tensor) {
    const at::Tensor magnitudes = g.abs(), all = magnitudes.sum(at::kDouble);
    found.push_back(kind == Norm::absolute  ? all
                    : kind == Norm::squares ? magnitudes.to(at::kDouble).square_().sum()
                                            : magnitudes.amax().to(at::kDouble));
    found.push_back(all);
  });
  NormTerm total;
  if (found.empty()) return total;
  const at::Tensor numbers = at::stack(found).cpu();  // one wait for all of them
  const double* term = numbers.const_data_ptr<double>();
  for (size_t i = 0; i < found.size(); i += 2) total.add({term[i], std::isfinite(term[i + 1])}, kind);
  return total;
}

}  // namespace trireme::kernels::expressions
