#include "trireme/kernels/rms_norm.h"

#include <ATen/ATen.h>

#include <cmath>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/kernels/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "trireme/kernels/rms_norm.cc"
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "trireme/kernels/widen-inl.h"
// clang-format on

#ifndef TRIREME_KERNELS_RMS_NORM_ROWS
#define TRIREME_KERNELS_RMS_NORM_ROWS
namespace trireme::kernels {

constexpr int64_t kNormRows = 32;  // whose weight gradients are summed together

// Some rows; `weight` and memory of its type are filled up to whole vectors.
struct NormRows {
  int64_t rows, features;
  double eps;
  const void *x, *gradient;
  const void* weight;  // with its offset
  void* inverse;
  void* out;           // y, or the gradient of x
  void* of_weight;     // added to
  void* scratch;       // three rows
};

}  // namespace trireme::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace trireme::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
void forward_as(const NormRows& r) {
  using W = Wide<T>;
  const hn::ScalableTag<W> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const W* weight = static_cast<const W*>(r.weight);
  W* x = static_cast<W*>(r.scratch);
  for (int64_t row = 0; row < r.rows; ++row) {
    const int64_t whole = widen(static_cast<const T*>(r.x) + row * r.features, 1, r.features, x);
    auto sum = hn::Zero(d);
    for (int64_t i = 0; i < whole; i += lanes) {
      const auto v = hn::LoadU(d, x + i);
      sum = hn::MulAdd(v, v, sum);
    }
    const W mean = hn::GetLane(hn::SumOfLanes(d, sum)) / static_cast<W>(r.features);
    const W inverse = 1 / std::sqrt(mean + static_cast<W>(r.eps));
    static_cast<W*>(r.inverse)[row] = inverse;
    const auto factor = hn::Set(d, inverse);
    for (int64_t i = 0; i < whole; i += lanes)
      hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, x + i), factor), hn::LoadU(d, weight + i)), d, x + i);
    narrow(x, r.features, static_cast<T*>(r.out) + row * r.features, 1);
  }
}

template <class T>
void backward_as(const NormRows& r) {
  using W = Wide<T>;
  const hn::ScalableTag<W> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t room = (r.features + lanes - 1) / lanes * lanes;
  const W* weight = static_cast<const W*>(r.weight);
  W* of_weight = static_cast<W*>(r.of_weight);
  W *x = static_cast<W*>(r.scratch), *g = x + room;
  for (int64_t row = 0; row < r.rows; ++row) {
    const int64_t whole = widen(static_cast<const T*>(r.x) + row * r.features, 1, r.features, x);
    widen(static_cast<const T*>(r.gradient) + row * r.features, 1, r.features, g);
    const auto inverse = hn::Set(d, static_cast<const W*>(r.inverse)[row]);
    auto sum = hn::Zero(d);
    for (int64_t i = 0; i < whole; i += lanes) {
      const auto normal = hn::Mul(hn::LoadU(d, x + i), inverse);
      const auto product = hn::Mul(hn::LoadU(d, g + i), normal);
      sum = hn::MulAdd(product, hn::LoadU(d, weight + i), sum);
      hn::StoreU(hn::Add(hn::LoadU(d, of_weight + i), product), d, of_weight + i);
      hn::StoreU(normal, d, x + i);
    }
    const auto mean =
        hn::Set(d, hn::GetLane(hn::SumOfLanes(d, sum)) / static_cast<W>(r.features));
    for (int64_t i = 0; i < whole; i += lanes) {
      const auto straight = hn::Mul(hn::LoadU(d, g + i), hn::LoadU(d, weight + i));
      hn::StoreU(hn::Mul(hn::NegMulAdd(hn::LoadU(d, x + i), mean, straight), inverse), d, g + i);
    }
    narrow(g, r.features, static_cast<T*>(r.out) + row * r.features, 1);
  }
}

template <class T>
void rows_as(const NormRows& r) {
  r.gradient != nullptr ? backward_as<T>(r) : forward_as<T>(r);
}

void norm_rows(at::ScalarType type, const NormRows& r) {
  with_floating(type, [&](auto value) { rows_as<decltype(value)>(r); });
}

}  // namespace trireme::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::kernels {

HWY_EXPORT(norm_rows);

namespace {

at::ScalarType arithmetic(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

// A whole number of vectors of any target.
int64_t padded(int64_t features) { return (features + 63) / 64 * 64; }

at::Tensor offset_weight(const at::Tensor& x, const at::Tensor& weight, double offset) {
  base::check(is_floating(x.scalar_type()) && x.is_contiguous() && weight.dim() == 1 && x.dim() >= 1 &&
                  weight.size(0) == x.size(-1),
              "a norm takes contiguous rows of fp64, fp32, bf16 or fp16 and a weight for each feature");
  at::Tensor wide = at::zeros({padded(weight.size(0))}, arithmetic(x));
  wide.narrow(0, 0, weight.size(0)).copy_(weight).add_(offset);
  return wide;
}

const char* row_of(const at::Tensor& t, int64_t row) {
  return static_cast<const char*>(t.const_data_ptr()) + row * t.size(-1) * static_cast<int64_t>(t.element_size());
}
char* row_of(at::Tensor& t, int64_t row) {
  return static_cast<char*>(t.mutable_data_ptr()) + row * t.size(-1) * static_cast<int64_t>(t.element_size());
}

}  // namespace

std::pair<at::Tensor, at::Tensor> rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, double offset) {
  const at::Tensor wide = offset_weight(x, weight, offset);
  const int64_t features = x.size(-1), rows = features > 0 ? x.numel() / features : 0;
  at::Tensor out = at::empty_like(x), inverse = at::empty({rows, 1}, wide.options());
  parallel_for((rows + kNormRows - 1) / kNormRows, std::max<int64_t>(1, 1024 / std::max<int64_t>(1, features)),
               [&](int64_t begin, int64_t end) {
                 at::Tensor scratch = at::empty({padded(features)}, wide.options());
                 begin *= kNormRows;
                 end = std::min(end * kNormRows, rows);
                 HWY_DYNAMIC_DISPATCH(norm_rows)
                 (x.scalar_type(), {.rows = end - begin,
                                    .features = features,
                                    .eps = eps,
                                    .x = row_of(x, begin),
                                    .gradient = nullptr,
                                    .weight = wide.const_data_ptr(),
                                    .inverse = row_of(inverse, begin),
                                    .out = row_of(out, begin),
                                    .of_weight = nullptr,
                                    .scratch = scratch.mutable_data_ptr()});
               });
  return {out, inverse};
}

std::pair<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& gradient, const at::Tensor& x,
                                                    const at::Tensor& weight, const at::Tensor& inverse, double offset) {
  const at::Tensor wide = offset_weight(x, weight, offset);
  base::check(gradient.is_contiguous() && gradient.sizes() == x.sizes() && gradient.scalar_type() == x.scalar_type(),
              "a norm's gradient is as its input");
  const int64_t features = x.size(-1), rows = features > 0 ? x.numel() / features : 0;
  const int64_t groups = (rows + kNormRows - 1) / kNormRows;
  at::Tensor out = at::empty_like(x), sums = at::zeros({groups, padded(features)}, wide.options());
  at::Tensor terms = inverse;
  parallel_for(groups, std::max<int64_t>(1, 1024 / std::max<int64_t>(1, features)), [&](int64_t begin, int64_t end) {
    at::Tensor scratch = at::empty({2 * padded(features)}, wide.options());
    for (int64_t group = begin; group < end; ++group) {
      const int64_t first = group * kNormRows;
      HWY_DYNAMIC_DISPATCH(norm_rows)
      (x.scalar_type(), {.rows = std::min(kNormRows, rows - first),
                         .features = features,
                         .eps = 0,
                         .x = row_of(x, first),
                         .gradient = row_of(gradient, first),
                         .weight = wide.const_data_ptr(),
                         .inverse = row_of(terms, first),
                         .out = row_of(out, first),
                         .of_weight = row_of(sums, group),
                         .scratch = scratch.mutable_data_ptr()});
    }
  });
  return {out, sums.sum(0).narrow(0, 0, features)};
}

}  // namespace trireme::kernels
#endif
