#include "trireme/kernels/gelu.h"

#include <ATen/ATen.h>

#include "trireme/base/error.h"
#include "trireme/kernels/expressions.h"
#include "trireme/kernels/floating.h"
#include "trireme/kernels/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "trireme/kernels/gelu.cc"
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace trireme::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr double kTwoRootTwoOverPi = 1.5957691216057308, kCubic = 0.044715;
constexpr int64_t kBlock = 1024;  // values worked on at a time, in the first-level cache

// exp(-2u) of one vector, and where it is too large to be held: there the sigmoid is 0.
template <class D, class V>
HWY_INLINE V exponential(D d, V x, V squared, hn::MFromD<D>& vanished) {
  using W = hn::TFromD<D>;
  const auto limit = hn::Set(d, static_cast<W>(sizeof(W) == 4 ? 80 : 700));
  const auto slope = hn::MulAdd(hn::Set(d, static_cast<W>(-kTwoRootTwoOverPi * kCubic)), squared,
                                hn::Set(d, static_cast<W>(-kTwoRootTwoOverPi)));
  const auto exponent = hn::Mul(x, slope);
  vanished = hn::Gt(exponent, limit);
  return hn::Exp(d, hn::Min(exponent, limit));
}

template <class D, class V>
HWY_INLINE V forward_vector(D d, V x) {
  hn::MFromD<D> vanished;
  const auto e = exponential(d, x, hn::Mul(x, x), vanished);
  const auto one = hn::Set(d, static_cast<hn::TFromD<D>>(1));
  return hn::IfThenZeroElse(vanished, hn::Div(x, hn::Add(one, e)));
}

template <class D, class V>
HWY_INLINE V backward_vector(D d, V x, V gradient) {
  using W = hn::TFromD<D>;
  hn::MFromD<D> vanished;
  const auto squared = hn::Mul(x, x);
  const auto e = exponential(d, x, squared, vanished);
  const auto one = hn::Set(d, static_cast<W>(1));
  const auto sigmoid = hn::Div(one, hn::Add(one, e));
  const auto slope = hn::MulAdd(hn::Set(d, static_cast<W>(3 * kTwoRootTwoOverPi * kCubic)), squared,
                                hn::Set(d, static_cast<W>(kTwoRootTwoOverPi)));
  // 1 - sigmoid without cancellation is e * sigmoid.
  const auto bend = hn::Mul(hn::Mul(x, slope), hn::Mul(e, sigmoid));
  const auto derivative = hn::IfThenZeroElse(vanished, hn::MulAdd(bend, sigmoid, sigmoid));
  return hn::Mul(gradient, derivative);
}

// Block by block in the type of the arithmetic; `gradient` is null in the forward pass. The last
// vector is filled up by zeros, so an element's bits do not depend on its place.
template <class T>
void apply(const T* x, const T* gradient, T* out, int64_t count) {
  using W = Wide<T>;
  const hn::ScalableTag<W> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  alignas(64) W values[kBlock + HWY_MAX_BYTES / sizeof(W)];
  alignas(64) W gradients[kBlock + HWY_MAX_BYTES / sizeof(W)];
  const auto load = [&](const T* from, int64_t size, W* to) {
    for (int64_t i = 0; i < size; ++i) to[i] = static_cast<W>(from[i]);
    std::fill(to + size, to + (size + lanes - 1) / lanes * lanes, W{0});
  };
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t size = std::min(kBlock, count - begin);
    load(x + begin, size, values);
    if (gradient != nullptr) {
      load(gradient + begin, size, gradients);
      for (int64_t i = 0; i < size; i += lanes)
        hn::Store(backward_vector(d, hn::Load(d, values + i), hn::Load(d, gradients + i)), d,
                  values + i);
    } else {
      for (int64_t i = 0; i < size; i += lanes)
        hn::Store(forward_vector(d, hn::Load(d, values + i)), d, values + i);
    }
    for (int64_t i = 0; i < size; ++i) out[begin + i] = static_cast<T>(values[i]);
  }
}

template <class T>
void apply(const void* x, const void* gradient, void* out, int64_t begin, int64_t end) {
  apply(static_cast<const T*>(x) + begin,
        gradient != nullptr ? static_cast<const T*>(gradient) + begin : nullptr,
        static_cast<T*>(out) + begin, end - begin);
}

void gelu_of(at::ScalarType type, const void* x, const void* gradient, void* out, int64_t begin,
             int64_t end) {
  with_floating(type,
                [&](auto value) { apply<decltype(value)>(x, gradient, out, begin, end); });
}

}  // namespace trireme::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::kernels {

HWY_EXPORT(gelu_of);

namespace {

at::Tensor run(const at::Tensor& x, const at::Tensor* gradient) {
  const at::ScalarType type = x.scalar_type();
  base::check(is_floating(type), "gelu takes fp64, fp32, bf16 or fp16, given {}",
              c10::toString(type));
  base::check(x.is_contiguous() && (gradient == nullptr ||
                                    (gradient->is_contiguous() && gradient->sizes() == x.sizes() &&
                                     gradient->scalar_type() == type)),
              "gelu needs contiguous tensors of one type and shape");
  if (!x.is_cpu())
    return gradient == nullptr ? expressions::gelu_tanh(x) : expressions::gelu_tanh_backward(x, *gradient);
  at::Tensor out = at::empty_like(x);
  const void* values = x.const_data_ptr();
  const void* gradients = gradient != nullptr ? gradient->const_data_ptr() : nullptr;
  void* results = out.mutable_data_ptr();
  const auto kernel = HWY_DYNAMIC_DISPATCH(gelu_of);
  parallel_for(x.numel(), 32768, [&](int64_t begin, int64_t end) {
    kernel(type, values, gradients, results, begin, end);
  });
  return out;
}

}  // namespace

at::Tensor gelu_tanh(const at::Tensor& x) {
  return run(x, nullptr);
}

at::Tensor gelu_tanh_backward(const at::Tensor& x, const at::Tensor& gradient) {
  return run(x, &gradient);
}

}  // namespace trireme::kernels
#endif
