#include "trireme/kernels/dropout.h"

#include <ATen/ATen.h>

#include "trireme/base/error.h"
#include "trireme/kernels/floating.h"
#include "trireme/kernels/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "trireme/kernels/dropout.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#ifndef TRIREME_KERNELS_DROPOUT_LINE
#define TRIREME_KERNELS_DROPOUT_LINE
namespace trireme::kernels {

// One line of the tensor: elements that differ in the last coordinate only.
struct Line {
  uint64_t key;
  uint32_t c1, c2, c3;  // the other words of the counter
  uint32_t threshold;   // a word below it drops its element
  double scale;
};

}  // namespace trireme::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace trireme::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kWords = 1024;  // made at a time; on the stack

// The words of counters first, first + 1, ...: `out` gets 4 words of each, at least `count` of them
// (a multiple of 4; the buffer has room for one more round of vectors). Each 64-bit lane carries
// one counter in its low half, so that a widening multiply needs no shuffle; two sets of lanes hide
// the multiply's latency.
void make_words(const Line& line, uint64_t first, int64_t count, uint32_t* HWY_RESTRICT out) {
  const hn::ScalableTag<uint64_t> d64;
  const hn::Repartition<uint32_t, decltype(d64)> d32;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d64));
  const auto low = hn::Set(d64, 0xFFFFFFFFu);
  const auto m0 = hn::BitCast(d32, hn::Set(d64, 0xD2511F53u)),
             m1 = hn::BitCast(d32, hn::Set(d64, 0xCD9E8D57u));
  for (int64_t done = 0; done < count; done += 8 * lanes) {
    // Even counters in a, odd ones in b.
    const auto index =
        hn::Add(hn::Set(d64, first + done / 4), hn::Add(hn::Iota(d64, 0), hn::Iota(d64, 0)));
    auto a0 = hn::And(index, low), b0 = hn::And(hn::Add(index, hn::Set(d64, 1)), low);
    auto a1 = hn::Set(d64, line.c1), b1 = a1;
    auto a2 = hn::Set(d64, line.c2), b2 = a2;
    auto a3 = hn::Set(d64, line.c3), b3 = a3;
    uint32_t k0 = static_cast<uint32_t>(line.key), k1 = static_cast<uint32_t>(line.key >> 32);
    for (int round = 0; round < 10; ++round) {
      const auto key0 = hn::Set(d64, k0), key1 = hn::Set(d64, k1);
      const auto pa0 = hn::MulEven(hn::BitCast(d32, a0), m0),
                 pa1 = hn::MulEven(hn::BitCast(d32, a2), m1);
      const auto pb0 = hn::MulEven(hn::BitCast(d32, b0), m0),
                 pb1 = hn::MulEven(hn::BitCast(d32, b2), m1);
      a0 = hn::Xor(hn::ShiftRight<32>(pa1), hn::Xor(a1, key0));
      b0 = hn::Xor(hn::ShiftRight<32>(pb1), hn::Xor(b1, key0));
      a2 = hn::Xor(hn::ShiftRight<32>(pa0), hn::Xor(a3, key1));
      b2 = hn::Xor(hn::ShiftRight<32>(pb0), hn::Xor(b3, key1));
      a1 = pa1, b1 = pb1;  // their high halves are garbage that no later step reads
      a3 = pa0, b3 = pb0;
      k0 += 0x9E3779B9;
      k1 += 0xBB67AE85;
    }
    const auto join = [&](auto even, auto odd) HWY_ATTR {
      return hn::BitCast(d32, hn::Or(hn::And(even, low), hn::ShiftLeft<32>(odd)));
    };
    hn::StoreInterleaved4(join(a0, b0), join(a1, b1), join(a2, b2), join(a3, b3), d32, out + done);
  }
}

// 16-bit types go through float, rounded to nearest even by their own conversion.
template <class T>
void apply(const uint32_t* HWY_RESTRICT words, uint32_t threshold, float scale, int64_t count,
           const T* x, T* out) {
  for (int64_t i = 0; i < count; ++i)
    out[i] = words[i] >= threshold ? static_cast<T>(static_cast<float>(x[i]) * scale)
                                   : static_cast<T>(0.0f);
}

void apply(const uint32_t* HWY_RESTRICT words, uint32_t threshold, float scale, int64_t count,
           const float* x, float* out) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto limit = hn::Set(du, threshold);
  const auto factor = hn::Set(d, scale);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto dropped = hn::RebindMask(d, hn::LoadU(du, words + i) < limit);
    hn::StoreU(hn::IfThenZeroElse(dropped, hn::LoadU(d, x + i) * factor), d, out + i);
  }
  for (; i < count; ++i) out[i] = words[i] >= threshold ? x[i] * scale : 0.0f;
}

void apply(const uint32_t* HWY_RESTRICT words, uint32_t threshold, double scale, int64_t count,
           const double* x, double* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = words[i] >= threshold ? x[i] * scale : 0.0;
}

template <class T>
void drop_line(const Line& line, int64_t origin, int64_t count, const void* x_data,
               void* out_data) {
  alignas(64) uint32_t words[kWords + 4 * HWY_MAX_BYTES];
  const auto* x = static_cast<const T*>(x_data);
  auto* out = static_cast<T*>(out_data);
  for (int64_t done = 0; done < count;) {
    const int64_t at = origin + done, skip = at % 4;
    const int64_t size = std::min(count - done, kWords - skip);
    make_words(line, static_cast<uint64_t>(at / 4), skip + size, words);
    apply(words + skip, line.threshold, line.scale, size, x + done, out + done);
    done += size;
  }
}

void drop(at::ScalarType type, const Line& line, int64_t origin, int64_t count, const void* x,
          void* out) {
  switch (type) {
    case at::kDouble:
      return drop_line<double>(line, origin, count, x, out);
    case at::kFloat:
      return drop_line<float>(line, origin, count, x, out);
    case at::kBFloat16:
      return drop_line<c10::BFloat16>(line, origin, count, x, out);
    default:
      return drop_line<c10::Half>(line, origin, count, x, out);
  }
}

}  // namespace trireme::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::kernels {

HWY_EXPORT(drop);

void dropout(const at::Tensor& x, at::Tensor& out, double p, const MaskCoordinates& where) {
  const at::ScalarType type = x.scalar_type();
  base::check(x.dim() >= 2 && x.dim() <= 4, "dropout takes 2 to 4 dimensions, given {}", x.dim());
  base::check(is_floating(type), "dropout takes fp64, fp32, bf16 or fp16, given {}",
              c10::toString(type));
  base::check(x.is_contiguous() && out.is_contiguous() && out.scalar_type() == type &&
                  out.sizes() == x.sizes(),
              "dropout needs contiguous tensors of one type and shape");
  base::check(where.samples.scalar_type() == at::kLong && where.samples.is_contiguous() &&
                  where.samples.numel() == x.size(0),
              "dropout needs the index of each of its {} samples", x.size(0));
  if (!(p >= 0 && p <= 1))
    throw base::ConfigError(fmt::format("dropout probability {} is outside of 0 to 1", p));
  if (x.numel() == 0) return;
  if (p == 1) {
    out.zero_();
    return;
  }

  const int64_t d = x.size(-1), c = x.dim() >= 3 ? x.size(-2) : 1, b = x.dim() == 4 ? x.size(1) : 1;
  const int64_t* samples = where.samples.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < x.size(0); ++i)
    base::check(samples[i] >= 0 && samples[i] >> 32 == 0,
                "sample index {} does not fit the mask's counter", samples[i]);
  const auto* source = static_cast<const char*>(x.const_data_ptr());
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
      kernel(type, line, where.origin_d, d, source + l * line_bytes, target + l * line_bytes);
    }
  });
}

}  // namespace trireme::kernels
#endif
