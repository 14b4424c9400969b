// Rows of any floating type as the type of their arithmetic: included once for each target, after highway.h.

#if defined(TRIREME_KERNELS_WIDEN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIREME_KERNELS_WIDEN_INL_H_
#undef TRIREME_KERNELS_WIDEN_INL_H_
#else
#define TRIREME_KERNELS_WIDEN_INL_H_
#endif

#include "trireme/kernels/floating.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Values at a stride, filled up to whole vectors by zeros, for which `to` has room. Returns how many that are.
template <class T>
HWY_INLINE int64_t widen(const T* HWY_RESTRICT from, int64_t stride, int64_t count, Wide<T>* HWY_RESTRICT to) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(hn::ScalableTag<Wide<T>>()));
  const int64_t whole = (count + lanes - 1) / lanes * lanes;
  if (stride == 1)
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<Wide<T>>(from[i]);
  else
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<Wide<T>>(from[i * stride]);
  for (int64_t i = count; i < whole; ++i) to[i] = 0;
  return whole;
}

template <class T>
HWY_INLINE void narrow(const Wide<T>* HWY_RESTRICT from, int64_t count, T* HWY_RESTRICT to, int64_t stride) {
  if (stride == 1)
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(from[i]);
  else
    for (int64_t i = 0; i < count; ++i) to[i * stride] = static_cast<T>(from[i]);
}

}  // namespace trireme::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
