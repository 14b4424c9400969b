// Philox's words for lines of a mask, vectorised: included once for each target, after highway.h.

#if defined(TRIREME_KERNELS_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIREME_KERNELS_PHILOX_INL_H_
#undef TRIREME_KERNELS_PHILOX_INL_H_
#else
#define TRIREME_KERNELS_PHILOX_INL_H_
#endif

#include "trireme/kernels/line.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The words of counters first, first + 1, ...: `out` gets 4 words of each, at least `count` of them
// (a multiple of 4; the buffer has room for one more round of vectors). Each 64-bit lane carries
// one counter in its low half, so that a widening multiply needs no shuffle; two sets of lanes hide
// the multiply's latency.
HWY_INLINE void make_words(const Line& line, uint64_t first, int64_t count, uint32_t* HWY_RESTRICT out) {
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

}  // namespace trireme::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
