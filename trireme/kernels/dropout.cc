#include "trireme/kernels/dropout.h"

#include <ATen/ATen.h>

#include "trireme/base/error.h"
#include "trireme/kernels/expressions.h"
#include "trireme/kernels/floating.h"
#include "trireme/kernels/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "trireme/kernels/dropout.cc"
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "trireme/kernels/philox-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace trireme::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kWords = 1024;  // made at a time; on the stack

// One by one; 16-bit types go through float, rounded to nearest even by their own conversion. `added` may be null.
template <class T>
void apply(const uint32_t* HWY_RESTRICT words, uint32_t threshold, double scale, int64_t count, const T* x,
           const T* added, T* out) {
  using W = Wide<T>;
  const W factor = static_cast<W>(scale);
  for (int64_t i = 0; i < count; ++i) {
    const W kept = words[i] >= threshold ? static_cast<W>(x[i]) * factor : W{0};
    out[i] = static_cast<T>(added != nullptr ? static_cast<W>(added[i]) + kept : kept);
  }
}

template <>
void apply(const uint32_t* HWY_RESTRICT words, uint32_t threshold, double scale, int64_t count, const float* x,
           const float* added, float* out) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto limit = hn::Set(du, threshold);
  const auto factor = hn::Set(d, static_cast<float>(scale));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto dropped = hn::RebindMask(d, hn::LoadU(du, words + i) < limit);
    auto kept = hn::IfThenZeroElse(dropped, hn::LoadU(d, x + i) * factor);
    if (added != nullptr) kept = hn::Add(hn::LoadU(d, added + i), kept);
    hn::StoreU(kept, d, out + i);
  }
  for (; i < count; ++i) {
    const float kept = words[i] >= threshold ? x[i] * static_cast<float>(scale) : 0.0f;
    out[i] = added != nullptr ? added[i] + kept : kept;
  }
}

template <class T>
void drop_line(const Line& line, int64_t origin, int64_t count, const void* x_data, const void* added_data,
               void* out_data) {
  alignas(64) uint32_t words[kWords + 4 * HWY_MAX_BYTES];
  const auto* x = static_cast<const T*>(x_data);
  const auto* added = static_cast<const T*>(added_data);
  auto* out = static_cast<T*>(out_data);
  for (int64_t done = 0; done < count;) {
    const int64_t at = origin + done, skip = at % 4;
    const int64_t size = std::min(count - done, kWords - skip);
    make_words(line, static_cast<uint64_t>(at / 4), skip + size, words);
    apply(words + skip, line.threshold, line.scale, size, x + done, added != nullptr ? added + done : nullptr,
          out + done);
    done += size;
  }
}

void drop(at::ScalarType type, const Line& line, int64_t origin, int64_t count, const void* x, const void* added,
          void* out) {
  with_floating(type,
                [&](auto value) { drop_line<decltype(value)>(line, origin, count, x, added, out); });
}

}  // namespace trireme::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::kernels {

HWY_EXPORT(drop);

void dropout(const at::Tensor& x, at::Tensor& out, double p, const MaskCoordinates& where, const at::Tensor& added) {
  const at::ScalarType type = x.scalar_type();
  base::check(x.dim() >= 2 && x.dim() <= 4, "dropout takes 2 to 4 dimensions, given {}", x.dim());
  base::check(is_floating(type), "dropout takes fp64, fp32, bf16 or fp16, given {}",
              c10::toString(type));
  base::check(x.is_contiguous() && out.is_contiguous() && out.scalar_type() == type &&
                  out.sizes() == x.sizes(),
              "dropout needs contiguous tensors of one type and shape");
  base::check(!added.defined() || (added.is_contiguous() && added.scalar_type() == type && added.sizes() == x.sizes()),
              "what dropout's result is added to is as its input");
  base::check(where.samples.scalar_type() == at::kLong && where.samples.is_contiguous() &&
                  where.samples.numel() == x.size(0),
              "dropout needs the index of each of its {} samples", x.size(0));
  if (!(p >= 0 && p <= 1))
    throw base::ConfigError(fmt::format("dropout probability {} is outside of 0 to 1", p));
  if (x.numel() == 0) return;
  if (p == 1) {
    added.defined() ? out.copy_(added) : out.zero_();
    return;
  }
  if (!x.is_cpu()) return expressions::dropout(x, out, p, where);

  const int64_t d = x.size(-1), c = x.dim() >= 3 ? x.size(-2) : 1, b = x.dim() == 4 ? x.size(1) : 1;
  const int64_t* samples = where.samples.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < x.size(0); ++i)
    base::check(samples[i] >= 0 && samples[i] >> 32 == 0,
                "sample index {} does not fit the mask's counter", samples[i]);
  const auto* source = static_cast<const char*>(x.const_data_ptr());
  const auto* sums = added.defined() ? static_cast<const char*>(added.const_data_ptr()) : nullptr;
  auto* target = static_cast<char*>(out.mutable_data_ptr());
  const int64_t line_bytes = d * static_cast<int64_t>(x.element_size());
  const auto kernel = HWY_DYNAMIC_DISPATCH(drop);
  parallel_for(x.size(0) * b * c, std::max<int64_t>(1, 32768 / d), [&](int64_t begin, int64_t end) {
    for (int64_t l = begin; l < end; ++l) {
      Line line{.key = where.key,
                .c1 = static_cast<uint32_t>(where.origin_c + l % c),
                .c2 = static_cast<uint32_t>(where.origin_b + l / c % b),
                .c3 = static_cast<uint32_t>(samples[l / (b * c)]),
                .threshold = static_cast<uint32_t>(p * 0x1p32),
                .scale = 1 / (1 - p)};
      kernel(type, line, where.origin_d, d, source + l * line_bytes,
             sums != nullptr ? sums + l * line_bytes : nullptr, target + l * line_bytes);
    }
  });
}

}  // namespace trireme::kernels
#endif
