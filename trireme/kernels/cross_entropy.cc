#include "trireme/kernels/cross_entropy.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/kernels/expressions.h"
#include "trireme/kernels/floating.h"
#include "trireme/kernels/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "trireme/kernels/cross_entropy.cc"
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
// clang-format on

#ifndef TRIREME_KERNELS_CROSS_ENTROPY_TYPES
#define TRIREME_KERNELS_CROSS_ENTROPY_TYPES
namespace trireme::kernels {

struct Terms {
  double peak = -std::numeric_limits<double>::infinity(), sum = 0;
};
struct GradientRow {
  double peak, factor, scale;  // factor: scale / sum
  int64_t target;
};

}  // namespace trireme::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace trireme::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kBlock = 1024;  // values worked on at a time, in the first-level cache

// Values as the type of the arithmetic, filled up to whole vectors by -infinity, whose exp is 0.
// Returns how many that are.
template <class T, class D>
int64_t load_block(D d, const T* HWY_RESTRICT from, int64_t count, Wide<T>* HWY_RESTRICT to) {
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<Wide<T>>(from[i]);
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t whole = (count + lanes - 1) / lanes * lanes;
  std::fill(to + count, to + whole, -std::numeric_limits<Wide<T>>::infinity());
  return whole;
}

template <class T>
Terms terms_as(const T* row, int64_t columns) {
  using W = Wide<T>;
  const hn::ScalableTag<W> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  alignas(64) W block[kBlock + HWY_MAX_BYTES / sizeof(W)];
  Terms terms;
  bool lost = false;  // a NaN, which neither a maximum nor exp need pass on
  for (int64_t begin = 0; begin < columns; begin += kBlock) {
    const int64_t whole = load_block(d, row + begin, std::min(kBlock, columns - begin), block);
    auto largest = hn::Load(d, block);
    auto nan = hn::IsNaN(largest);
    for (int64_t i = lanes; i < whole; i += lanes) {
      const auto x = hn::Load(d, block + i);
      largest = hn::Max(largest, x);
      nan = hn::Or(nan, hn::IsNaN(x));
    }
    lost = lost || !hn::AllFalse(d, nan);
    const double peak =
        std::max(terms.peak, static_cast<double>(hn::GetLane(hn::MaxOfLanes(d, largest))));
    if (peak == -std::numeric_limits<double>::infinity()) continue;
    const auto subtract = hn::Set(d, static_cast<W>(peak));
    auto sum = hn::Zero(d);
    for (int64_t i = 0; i < whole; i += lanes)
      sum = hn::Add(sum, hn::Exp(d, hn::Sub(hn::Load(d, block + i), subtract)));
    terms.sum = terms.sum * std::exp(terms.peak - peak) +
                static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum)));
    terms.peak = peak;
  }
  if (lost || terms.peak == std::numeric_limits<double>::infinity())
    terms.sum = std::numeric_limits<double>::quiet_NaN();
  return terms;
}

template <class T>
void gradient_as(T* row, int64_t columns, const GradientRow& g) {
  using W = Wide<T>;
  if (g.scale == 0) {
    std::fill_n(row, columns, static_cast<T>(0));
    return;
  }
  const hn::ScalableTag<W> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto subtract = hn::Set(d, static_cast<W>(g.peak)),
             factor = hn::Set(d, static_cast<W>(g.factor));
  alignas(64) W block[kBlock + HWY_MAX_BYTES / sizeof(W)];
  for (int64_t begin = 0; begin < columns; begin += kBlock) {
    const int64_t count = std::min(kBlock, columns - begin);
    const int64_t whole = load_block(d, row + begin, count, block);
    for (int64_t i = 0; i < whole; i += lanes)
      hn::Store(hn::Mul(factor, hn::Exp(d, hn::Sub(hn::Load(d, block + i), subtract))), d,
                block + i);
    if (g.target >= begin && g.target < begin + count)
      block[g.target - begin] -= static_cast<W>(g.scale);
    for (int64_t i = 0; i < count; ++i) row[begin + i] = static_cast<T>(block[i]);
  }
}

Terms terms_of(at::ScalarType type, const void* row, int64_t columns) {
  return with_floating(type, [&](auto value) {
    return terms_as(static_cast<const decltype(value)*>(row), columns);
  });
}

void gradient_of(at::ScalarType type, void* row, int64_t columns, const GradientRow& g) {
  with_floating(type,
                [&](auto value) { gradient_as(static_cast<decltype(value)*>(row), columns, g); });
}

}  // namespace trireme::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::kernels {

HWY_EXPORT(terms_of);
HWY_EXPORT(gradient_of);

namespace {

void check_logits(const at::Tensor& logits) {
  const at::ScalarType type = logits.scalar_type();
  base::check(is_floating(type), "logits are fp64, fp32, bf16 or fp16, given {}",
              c10::toString(type));
  base::check(logits.dim() == 2 && (logits.stride(1) == 1 || logits.size(1) <= 1),
              "logits are rows of contiguous columns");
}

// Calls body(row) for all rows; a thread takes rows of 32 Ki values in total or more.
template <class Body>
void for_each_row(const at::Tensor& logits, const Body& body) {
  const int64_t grain = std::max<int64_t>(1, 32768 / std::max<int64_t>(1, logits.size(1)));
  parallel_for(logits.size(0), grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i);
  });
}

}  // namespace

at::Tensor softmax_terms(const at::Tensor& logits) {
  check_logits(logits);
  if (!logits.is_cpu()) return expressions::softmax_terms(logits);
  at::Tensor out = at::empty({logits.size(0), 2}, at::kDouble);
  double* terms = out.mutable_data_ptr<double>();
  const auto* data = static_cast<const char*>(logits.const_data_ptr());
  const int64_t stride = logits.stride(0) * static_cast<int64_t>(logits.element_size());
  const auto kernel = HWY_DYNAMIC_DISPATCH(terms_of);
  for_each_row(logits, [&](int64_t i) {
    const Terms t = kernel(logits.scalar_type(), data + i * stride, logits.size(1));
    terms[2 * i] = t.peak;
    terms[2 * i + 1] = t.sum;
  });
  return out;
}

void softmax_gradient(at::Tensor& logits, const at::Tensor& peak, const at::Tensor& sum,
                      const at::Tensor& scale, const at::Tensor& target) {
  check_logits(logits);
  for (const at::Tensor& t : {peak, sum, scale})
    base::check(t.scalar_type() == at::kDouble && t.is_contiguous() && t.numel() == logits.size(0),
                "a row of logits has one peak, sum and scale in fp64");
  base::check(target.scalar_type() == at::kLong && target.is_contiguous() &&
                  target.numel() == logits.size(0),
              "a row of logits has one target in int64");
  if (!logits.is_cpu()) return expressions::softmax_gradient(logits, peak, sum, scale, target);
  const double *peaks = peak.const_data_ptr<double>(), *sums = sum.const_data_ptr<double>(),
               *scales = scale.const_data_ptr<double>();
  const int64_t* targets = target.const_data_ptr<int64_t>();
  auto* data = static_cast<char*>(logits.mutable_data_ptr());
  const int64_t stride = logits.stride(0) * static_cast<int64_t>(logits.element_size());
  const auto kernel = HWY_DYNAMIC_DISPATCH(gradient_of);
  for_each_row(logits, [&](int64_t i) {
    kernel(logits.scalar_type(), data + i * stride, logits.size(1),
           {.peak = peaks[i],
            .factor = scales[i] / sums[i],
            .scale = scales[i],
            .target = targets[i]});
  });
}

}  // namespace trireme::kernels
#endif
