#include "trireme/kernels/rotary.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/kernels/parallel.h"
#include "trireme/kernels/places.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "trireme/kernels/rotary.cc"
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "trireme/kernels/widen-inl.h"
// clang-format on

#ifndef TRIREME_KERNELS_ROTARY_PLACE
#define TRIREME_KERNELS_ROTARY_PLACE
namespace trireme::kernels {

constexpr int64_t kMostPairs = 1024;  // of a head

// The heads of one place.
struct RotaryPlace {
  const void* x;
  void* out;
  const void *cos, *sin;  // in the type of the arithmetic, filled up to whole vectors
  int64_t heads, x_stride, out_stride, half, size;
  bool interleaved, back;
};

}  // namespace trireme::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace trireme::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
void place_as(const RotaryPlace& r) {
  using W = Wide<T>;
  const hn::ScalableTag<W> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const W *cos = static_cast<const W*>(r.cos), *sin = static_cast<const W*>(r.sin);
  const int64_t step = r.interleaved ? 2 : 1, second = r.interleaved ? 1 : r.half;
  const auto sign = hn::Set(d, static_cast<W>(r.back ? -1 : 1));
  alignas(64) W as[kMostPairs + HWY_MAX_BYTES / sizeof(W)];
  alignas(64) W bs[kMostPairs + HWY_MAX_BYTES / sizeof(W)];
  for (int64_t head = 0; head < r.heads; ++head) {
    const T* x = static_cast<const T*>(r.x) + head * r.x_stride;
    T* out = static_cast<T*>(r.out) + head * r.out_stride;
    const int64_t whole = widen(x, step, r.half, as);
    widen(x + second, step, r.half, bs);
    for (int64_t i = 0; i < whole; i += lanes) {
      const auto a = hn::Load(d, as + i), b = hn::Load(d, bs + i), c = hn::LoadU(d, cos + i),
                 s = hn::Mul(sign, hn::LoadU(d, sin + i));
      hn::Store(hn::NegMulAdd(b, s, hn::Mul(a, c)), d, as + i);
      hn::Store(hn::MulAdd(a, s, hn::Mul(b, c)), d, bs + i);
    }
    narrow(as, r.half, out, step);
    narrow(bs, r.half, out + second, step);
    std::copy(x + 2 * r.half, x + r.size, out + 2 * r.half);
  }
}

void rotate_place(at::ScalarType type, const RotaryPlace& r) {
  with_floating(type, [&](auto value) { place_as<decltype(value)>(r); });
}

}  // namespace trireme::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::kernels {

HWY_EXPORT(rotate_place);

namespace {

// Rows filled up to a whole number of vectors of any target.
at::Tensor padded(const at::Tensor& table, at::ScalarType type) {
  at::Tensor out = at::zeros({table.size(0), (table.size(1) + 15) / 16 * 16}, type);
  out.narrow(1, 0, table.size(1)).copy_(table);
  return out;
}

}  // namespace

at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool interleaved, bool back) {
  const at::ScalarType type = x.scalar_type();
  base::check(is_floating(type) && x.dim() == 4 && cos.dim() == 2 && cos.size(0) == x.size(2) &&
                  2 * cos.size(1) <= x.size(3) && cos.size(1) <= kMostPairs && sin.sizes() == cos.sizes(),
              "rotation takes [batch, heads, positions, size] and tables of its positions");
  const at::Tensor given = with_features_together(x);
  const at::ScalarType wide = type == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor cosines = padded(cos, wide), sines = padded(sin, wide);
  const int64_t heads = x.size(1), places = x.size(2), size = x.size(3);
  at::Tensor made = at::empty({x.size(0), places, heads, size}, x.options());
  const Places source(given.transpose(1, 2)), target(made), of_cos(cosines), of_sin(sines);
  parallel_for(x.size(0) * places, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, heads * size)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   const int64_t b = i / places, p = i % places;
                   HWY_DYNAMIC_DISPATCH(rotate_place)
                   (type, {.x = source.at(b, p),
                           .out = target.at(b, p),
                           .cos = of_cos.at(p),
                           .sin = of_sin.at(p),
                           .heads = heads,
                           .x_stride = given.stride(1),
                           .out_stride = size,
                           .half = cos.size(1),
                           .size = size,
                           .interleaved = interleaved,
                           .back = back});
                 }
               });
  return made.transpose(1, 2);
}

}  // namespace trireme::kernels
#endif
