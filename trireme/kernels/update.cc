#include "trireme/kernels/update.h"

#include <ATen/ATen.h>

#include <cmath>

#include "trireme/base/error.h"
#include "trireme/kernels/expressions.h"
#include "trireme/kernels/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "trireme/kernels/update.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Calls body(i, vectors...) for whole vectors, then once more on padded copies of what is left, so
// that the last elements see the same instructions as the others.
template <class T, class Body>
void for_each_vector(T* p, const T* g, T* a, T* b, int64_t count, const Body& body) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    body(p + i, g + i, a ? a + i : nullptr, b ? b + i : nullptr);
  const int64_t rest = count - i;
  if (rest == 0) return;
  alignas(64) T copies[4][HWY_MAX_BYTES / sizeof(T)] = {};
  T* const arrays[] = {p, const_cast<T*>(g), a, b};
  for (int k = 0; k < 4; ++k)
    if (arrays[k] != nullptr) std::copy_n(arrays[k] + i, rest, copies[k]);
  body(copies[0], copies[1], a ? copies[2] : nullptr, b ? copies[3] : nullptr);
  for (int k : {0, 2, 3})
    if (arrays[k] != nullptr) std::copy_n(copies[k], rest, arrays[k] + i);
}

template <class T, bool kDecoupled>
void adam_piece(const Piece& piece, const Adam& rule, double grad_scale) {
  const hn::ScalableTag<T> d;
  const double lr = rule.lr * piece.lr_scale;
  const double correction1 = 1 - std::pow(rule.beta1, rule.step);
  const double correction2 = 1 - std::pow(rule.beta2, rule.step);
  const auto set = [&](double value) HWY_ATTR { return hn::Set(d, static_cast<T>(value)); };
  const auto scale = set(grad_scale);
  const auto decay = set(kDecoupled ? 1 - lr * piece.weight_decay : piece.weight_decay);
  const auto beta1 = set(rule.beta1), gain1 = set(1 - rule.beta1);
  const auto beta2 = set(rule.beta2), gain2 = set(1 - rule.beta2);
  const auto eps = set(rule.eps), root = set(1 / std::sqrt(correction2));
  const auto rate = set(lr / correction1);
  for_each_vector(static_cast<T*>(piece.param), static_cast<const T*>(piece.grad),
                  static_cast<T*>(piece.state[0]), static_cast<T*>(piece.state[1]), piece.count,
                  [&](T* p, const T* g, T* a, T* b) HWY_ATTR {
                    const auto param = hn::LoadU(d, p);
                    auto grad = hn::Mul(hn::LoadU(d, g), scale);
                    if constexpr (!kDecoupled) grad = hn::MulAdd(decay, param, grad);
                    const auto m = hn::MulAdd(gain1, grad, hn::Mul(beta1, hn::LoadU(d, a)));
                    const auto v =
                        hn::MulAdd(gain2, hn::Mul(grad, grad), hn::Mul(beta2, hn::LoadU(d, b)));
                    const auto step = hn::Div(m, hn::MulAdd(hn::Sqrt(v), root, eps));
                    hn::StoreU(m, d, a);
                    hn::StoreU(v, d, b);
                    const auto kept = kDecoupled ? hn::Mul(param, decay) : param;
                    hn::StoreU(hn::NegMulAdd(rate, step, kept), d, p);
                  });
}

template <class T>
void sgd_piece(const Piece& piece, const Sgd& rule, double grad_scale) {
  const hn::ScalableTag<T> d;
  const auto scale = hn::Set(d, static_cast<T>(grad_scale));
  const auto decay = hn::Set(d, static_cast<T>(piece.weight_decay));
  const auto momentum = hn::Set(d, static_cast<T>(rule.momentum));
  const auto rate = hn::Set(d, static_cast<T>(rule.lr * piece.lr_scale));
  for_each_vector(static_cast<T*>(piece.param), static_cast<const T*>(piece.grad),
                  static_cast<T*>(piece.state[0]), static_cast<T*>(nullptr), piece.count,
                  [&](T* p, const T* g, T* a, T*) HWY_ATTR {
                    const auto param = hn::LoadU(d, p);
                    auto step = hn::MulAdd(decay, param, hn::Mul(hn::LoadU(d, g), scale));
                    if (a != nullptr) {
                      const auto buffer = hn::MulAdd(momentum, hn::LoadU(d, a), step);
                      hn::StoreU(buffer, d, a);
                      step = rule.nesterov ? hn::MulAdd(momentum, buffer, step) : buffer;
                    }
                    hn::StoreU(hn::NegMulAdd(rate, step, param), d, p);
                  });
}

template <class T>
void lion_piece(const Piece& piece, const Lion& rule, double grad_scale) {
  const hn::ScalableTag<T> d;
  const double lr = rule.lr * piece.lr_scale;
  const auto set = [&](double value) HWY_ATTR { return hn::Set(d, static_cast<T>(value)); };
  const auto scale = set(grad_scale), decay = set(1 - lr * piece.weight_decay), rate = set(lr);
  const auto beta1 = set(rule.beta1), gain1 = set(1 - rule.beta1);
  const auto beta2 = set(rule.beta2), gain2 = set(1 - rule.beta2);
  for_each_vector(static_cast<T*>(piece.param), static_cast<const T*>(piece.grad),
                  static_cast<T*>(piece.state[0]), static_cast<T*>(nullptr), piece.count,
                  [&](T* p, const T* g, T* a, T*) HWY_ATTR {
                    const auto grad = hn::Mul(hn::LoadU(d, g), scale), m = hn::LoadU(d, a);
                    const auto step = hn::MulAdd(gain1, grad, hn::Mul(beta1, m));
                    const auto sign = hn::IfThenElseZero(hn::Ne(step, hn::Zero(d)),
                                                         hn::CopySign(hn::Set(d, T{1}), step));
                    hn::StoreU(hn::MulAdd(gain2, grad, hn::Mul(beta2, m)), d, a);
                    const auto kept = hn::Mul(hn::LoadU(d, p), decay);
                    hn::StoreU(hn::NegMulAdd(rate, sign, kept), d, p);
                  });
}

template <class T>
void average_piece(const Piece& piece, double decay) {
  const hn::ScalableTag<T> d;
  const auto kept = hn::Set(d, static_cast<T>(decay)), gain = hn::Set(d, static_cast<T>(1 - decay));
  for_each_vector(static_cast<T*>(piece.param), static_cast<const T*>(piece.grad),
                  static_cast<T*>(nullptr), static_cast<T*>(nullptr), piece.count,
                  [&](T* p, const T* g, T*, T*) HWY_ATTR {
                    hn::StoreU(hn::MulAdd(gain, hn::LoadU(d, g), hn::Mul(kept, hn::LoadU(d, p))), d,
                               p);
                  });
}

// One kind of term of a piece. Four sums run side by side over its quarters: an addition waits for
// the one before it, and one stream of reads does not fill the memory's bandwidth. What is not
// finite shows in the sum of magnitudes; squares of fp32 cannot overflow a double, so they show it
// as well.
template <class T, Norm kKind>
NormTerm norm_piece(const Piece& piece) {
  constexpr bool kShown = kKind == Norm::absolute || (kKind == Norm::squares && sizeof(T) == 4);
  const hn::ScalableTag<double> d;
  const hn::Rebind<T, decltype(d)> narrow;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const T* g = static_cast<const T*>(piece.grad);
  auto sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0, magnitudes = sum0;
  const auto add = [&](const T* from, auto& sum) HWY_ATTR {
    hn::VFromD<decltype(d)> x;
    if constexpr (sizeof(T) == sizeof(double))
      x = hn::LoadU(d, from);
    else
      x = hn::PromoteTo(d, hn::LoadU(narrow, from));
    if constexpr (kKind == Norm::absolute) sum = hn::Add(hn::Abs(x), sum);
    if constexpr (kKind == Norm::squares) sum = hn::MulAdd(x, x, sum);
    if constexpr (kKind == Norm::largest) sum = hn::Max(hn::Abs(x), sum);
    if constexpr (!kShown) magnitudes = hn::Add(hn::Abs(x), magnitudes);
  };
  const int64_t quarter = piece.count / (4 * lanes) * lanes;
  for (int64_t i = 0; i < quarter; i += lanes) {
    add(g + i, sum0);
    add(g + quarter + i, sum1);
    add(g + 2 * quarter + i, sum2);
    add(g + 3 * quarter + i, sum3);
  }
  for (int64_t i = 4 * quarter; i < piece.count; i += lanes) {
    alignas(64) T rest[HWY_MAX_BYTES / sizeof(double)] = {};
    std::copy_n(g + i, std::min(lanes, piece.count - i), rest);
    add(rest, sum0);
  }
  double value;
  if constexpr (kKind == Norm::largest)
    value = hn::GetLane(hn::MaxOfLanes(d, hn::Max(hn::Max(sum0, sum1), hn::Max(sum2, sum3))));
  else
    value = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
  return {value, std::isfinite(kShown ? value : hn::GetLane(hn::SumOfLanes(d, magnitudes)))};
}

template <class T>
NormTerm norm_as(const Piece& piece, Norm kind) {
  switch (kind) {
    case Norm::absolute:
      return norm_piece<T, Norm::absolute>(piece);
    case Norm::squares:
      return norm_piece<T, Norm::squares>(piece);
    default:
      return norm_piece<T, Norm::largest>(piece);
  }
}

template <class T>
void adam_as(const Piece& piece, const Adam& rule, double grad_scale) {
  rule.decoupled ? adam_piece<T, true>(piece, rule, grad_scale)
                 : adam_piece<T, false>(piece, rule, grad_scale);
}

void adam_of(at::ScalarType type, const Piece& piece, const Adam& rule, double grad_scale) {
  type == at::kDouble ? adam_as<double>(piece, rule, grad_scale)
                      : adam_as<float>(piece, rule, grad_scale);
}
void sgd_of(at::ScalarType type, const Piece& piece, const Sgd& rule, double grad_scale) {
  type == at::kDouble ? sgd_piece<double>(piece, rule, grad_scale)
                      : sgd_piece<float>(piece, rule, grad_scale);
}
void lion_of(at::ScalarType type, const Piece& piece, const Lion& rule, double grad_scale) {
  type == at::kDouble ? lion_piece<double>(piece, rule, grad_scale)
                      : lion_piece<float>(piece, rule, grad_scale);
}
void average_of(at::ScalarType type, const Piece& piece, double decay) {
  type == at::kDouble ? average_piece<double>(piece, decay) : average_piece<float>(piece, decay);
}
NormTerm norm_of(at::ScalarType type, const Piece& piece, Norm kind) {
  return type == at::kDouble ? norm_as<double>(piece, kind) : norm_as<float>(piece, kind);
}

}  // namespace trireme::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::kernels {
namespace {

constexpr int64_t kBlock = 16384;  // elements: what a thread works on before it takes the next

// The pieces cut into blocks; where blocks begin does not depend on the number of threads.
std::vector<Piece> cut(std::span<const Piece> pieces, at::ScalarType type) {
  base::check(type == at::kFloat || type == at::kDouble, "updates run in fp32 or fp64, given {}",
              c10::toString(type));
  const int64_t size = static_cast<int64_t>(c10::elementSize(type));
  auto advance = [&](auto* address, int64_t elements) -> decltype(address) {
    using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(address)>>,
                                    const char, char>;
    return address ? static_cast<Byte*>(address) + elements * size : nullptr;
  };
  std::vector<Piece> blocks;
  for (const Piece& piece : pieces)
    for (int64_t begin = 0; begin < piece.count; begin += kBlock)
      blocks.push_back({.param = advance(piece.param, begin),
                        .grad = advance(piece.grad, begin),
                        .state = {advance(piece.state[0], begin), advance(piece.state[1], begin)},
                        .count = std::min(kBlock, piece.count - begin),
                        .weight_decay = piece.weight_decay,
                        .lr_scale = piece.lr_scale});
  return blocks;
}

void for_each_block(const std::vector<Piece>& blocks, c10::function_ref<void(size_t)> body) {
  parallel_for(static_cast<int64_t>(blocks.size()), 2, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(static_cast<size_t>(i));
  });
}

}  // namespace

HWY_EXPORT(adam_of);
HWY_EXPORT(sgd_of);
HWY_EXPORT(lion_of);
HWY_EXPORT(average_of);
HWY_EXPORT(norm_of);

void adam(std::span<const Piece> pieces, at::ScalarType type, const Adam& rule, double grad_scale,
          c10::Device device) {
  if (!device.is_cpu()) return expressions::adam(pieces, type, rule, grad_scale, device);
  const auto blocks = cut(pieces, type);
  const auto kernel = HWY_DYNAMIC_DISPATCH(adam_of);
  for_each_block(blocks, [&](size_t i) { kernel(type, blocks[i], rule, grad_scale); });
}

void sgd(std::span<const Piece> pieces, at::ScalarType type, const Sgd& rule, double grad_scale,
         c10::Device device) {
  if (!device.is_cpu()) return expressions::sgd(pieces, type, rule, grad_scale, device);
  const auto blocks = cut(pieces, type);
  const auto kernel = HWY_DYNAMIC_DISPATCH(sgd_of);
  for_each_block(blocks, [&](size_t i) { kernel(type, blocks[i], rule, grad_scale); });
}

void lion(std::span<const Piece> pieces, at::ScalarType type, const Lion& rule, double grad_scale,
          c10::Device device) {
  if (!device.is_cpu()) return expressions::lion(pieces, type, rule, grad_scale, device);
  const auto blocks = cut(pieces, type);
  const auto kernel = HWY_DYNAMIC_DISPATCH(lion_of);
  for_each_block(blocks, [&](size_t i) { kernel(type, blocks[i], rule, grad_scale); });
}

void average(std::span<const Piece> pieces, at::ScalarType type, double decay, c10::Device device) {
  if (!device.is_cpu()) return expressions::average(pieces, type, decay, device);
  const auto blocks = cut(pieces, type);
  const auto kernel = HWY_DYNAMIC_DISPATCH(average_of);
  for_each_block(blocks, [&](size_t i) { kernel(type, blocks[i], decay); });
}

NormTerm norm_term(std::span<const Piece> pieces, at::ScalarType type, Norm kind, c10::Device device) {
  if (!device.is_cpu()) return expressions::norm_term(pieces, type, kind, device);
  const auto blocks = cut(pieces, type);
  const auto kernel = HWY_DYNAMIC_DISPATCH(norm_of);
  std::vector<NormTerm> terms(blocks.size());
  for_each_block(blocks, [&](size_t i) { terms[i] = kernel(type, blocks[i], kind); });
  NormTerm total;
  for (const NormTerm& term : terms) total.add(term, kind);
  return total;
}

}  // namespace trireme::kernels
#endif
