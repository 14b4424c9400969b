#include "trireme/kernels/gate.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/kernels/parallel.h"
#include "trireme/kernels/places.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "trireme/kernels/gate.cc"
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
#include "trireme/kernels/widen-inl.h"
// clang-format on

#ifndef TRIREME_KERNELS_GATE_ROW
#define TRIREME_KERNELS_GATE_ROW
namespace trireme::kernels {

struct GateRow {
  const void *gate, *up, *gradient;  // gradient: null in the forward pass
  void *out, *of_up;                 // the result or the gradient of gate; that of up
  int64_t count;
};

}  // namespace trireme::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace trireme::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kBlock = 512;  // values worked on at a time, in the first-level cache

template <class T>
void row_as(const GateRow& r) {
  using W = Wide<T>;
  const hn::ScalableTag<W> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  // Beyond it the sigmoid is as good as 0, and the exponential still a number.
  const auto limit = hn::Set(d, static_cast<W>(sizeof(W) == 4 ? 80 : 700)), one = hn::Set(d, W{1});
  alignas(64) W gates[kBlock + HWY_MAX_BYTES / sizeof(W)];
  alignas(64) W ups[kBlock + HWY_MAX_BYTES / sizeof(W)];
  alignas(64) W gradients[kBlock + HWY_MAX_BYTES / sizeof(W)];
  for (int64_t begin = 0; begin < r.count; begin += kBlock) {
    const int64_t count = std::min(kBlock, r.count - begin);
    const int64_t whole = widen(static_cast<const T*>(r.gate) + begin, 1, count, gates);
    widen(static_cast<const T*>(r.up) + begin, 1, count, ups);
    if (r.gradient != nullptr) widen(static_cast<const T*>(r.gradient) + begin, 1, count, gradients);
    for (int64_t i = 0; i < whole; i += lanes) {
      const auto x = hn::Load(d, gates + i), u = hn::Load(d, ups + i);
      const auto e = hn::Exp(d, hn::Min(hn::Neg(x), limit));
      const auto sum = hn::Add(one, e);
      if (r.gradient == nullptr) {
        hn::Store(hn::Mul(hn::Div(x, sum), u), d, gates + i);
        continue;
      }
      const auto sigmoid = hn::Div(one, sum), g = hn::Load(d, gradients + i);
      // x (1 - sigmoid) without cancellation is x e sigmoid.
      const auto slope = hn::MulAdd(hn::Mul(x, hn::Mul(e, sigmoid)), sigmoid, sigmoid);
      hn::Store(hn::Mul(hn::Mul(g, u), slope), d, gates + i);
      hn::Store(hn::Mul(g, hn::Mul(x, sigmoid)), d, ups + i);
    }
    narrow(gates, count, static_cast<T*>(r.out) + begin, 1);
    if (r.gradient != nullptr) narrow(ups, count, static_cast<T*>(r.of_up) + begin, 1);
  }
}

void gate_row(at::ScalarType type, const GateRow& r) {
  with_floating(type, [&](auto value) { row_as<decltype(value)>(r); });
}

}  // namespace trireme::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::kernels {

HWY_EXPORT(gate_row);

namespace {

// [rows, features]; a view wherever its rows follow one another at one distance.
at::Tensor rows_of(const at::Tensor& t) {
  return with_features_together(t.dim() == 2 ? t : t.reshape({-1, t.size(-1)}));
}

void check(const at::Tensor& gate, const at::Tensor& other) {
  base::check(is_floating(gate.scalar_type()) && gate.dim() >= 1 && other.sizes() == gate.sizes() &&
                  other.scalar_type() == gate.scalar_type(),
              "a gate and what it gates are of one shape and type: fp64, fp32, bf16 or fp16");
}

// The result in `out`; or with a gradient, those of gate in `out` and of up in `of_up`.
void run(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& gradient, const at::Tensor& out,
         const at::Tensor& of_up) {
  const bool back = gradient.defined();
  const at::Tensor gates = rows_of(gate), ups = rows_of(up), gradients = back ? rows_of(gradient) : gates;
  const Places from_gate(gates), from_up(ups), from(gradients), to(rows_of(out)), to_up(rows_of(back ? of_up : out));
  const int64_t features = gate.size(-1);
  parallel_for(gates.size(0), std::max<int64_t>(1, 16384 / std::max<int64_t>(1, features)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i)
                   HWY_DYNAMIC_DISPATCH(gate_row)
                   (gate.scalar_type(), {.gate = from_gate.at(i),
                                         .up = from_up.at(i),
                                         .gradient = back ? from.at(i) : nullptr,
                                         .out = to.at(i),
                                         .of_up = back ? to_up.at(i) : nullptr,
                                         .count = features});
               });
}

}  // namespace

at::Tensor gated_silu(const at::Tensor& gate, const at::Tensor& up) {
  check(gate, up);
  at::Tensor out = at::empty(gate.sizes(), gate.options());
  run(gate, up, {}, out, {});
  return out;
}

std::pair<at::Tensor, at::Tensor> gated_silu_backward(const at::Tensor& gradient, const at::Tensor& gate,
                                                      const at::Tensor& up) {
  check(gate, up);
  check(gate, gradient);
  at::Tensor of_gate = at::empty(gate.sizes(), gate.options()), of_up = at::empty(gate.sizes(), gate.options());
  run(gate, up, gradient, of_gate, of_up);
  return {of_gate, of_up};
}

}  // namespace trireme::kernels
#endif
