#include "trireme/comm/reduction.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

struct BFloat16 {
  uint16_t bits;
  static float widen(BFloat16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }
  static BFloat16 narrow(float x) {
    uint32_t bits = std::bit_cast<uint32_t>(x);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return {
        static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16) | 0x40 : rounded)};
  }
};

struct Float16 {
  uint16_t bits;
  static float widen(Float16 x) {
    uint32_t sign = uint32_t{x.bits & 0x8000u} << 16, magnitude = x.bits & 0x7fffu;
    // Shifted into place the exponent is 112 too small; the multiplication also normalises
    // denormals.
    float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
    uint32_t bits =
        magnitude >= 0x7c00 ? 0x7f800000 | (magnitude << 13) : std::bit_cast<uint32_t>(scaled);
    return std::bit_cast<float>(sign | bits);
  }
  static Float16 narrow(float x) {
    uint32_t bits = std::bit_cast<uint32_t>(x);
    uint32_t sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
    uint32_t normal = (magnitude + 0xfff + ((magnitude >> 13) & 1) - (112u << 23)) >> 13;
    // Adding one half aligns a denormal's units with the lowest bits of the sum, rounded to nearest
    // even.
    uint32_t denormal =
        std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000;
    uint32_t half = magnitude < (113u << 23) ? denormal : normal;
    if (magnitude >= 0x477ff000) half = 0x7c00;  // rounds to 65536 or more
    if (magnitude > 0x7f800000) half = 0x7e00;
    return {static_cast<uint16_t>(sign | half)};
  }
};

template <class T>
constexpr bool kHalf = std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>;

template <class T>
auto widen(T x) {
  if constexpr (kHalf<T>)
    return T::widen(x);
  else
    return x;
}

template <class T, class A>
T narrow(A x) {
  if constexpr (kHalf<T>)
    return T::narrow(x);
  else
    return x;
}

template <Reduce kReduce, class A>
A combine(A a, A b) {
  if constexpr (std::is_same_v<A, bool>)
    return a || b;
  else if constexpr (kReduce == Reduce::max)
    return b > a || b != b ? b : a;
  else if constexpr (std::is_integral_v<A>)
    return static_cast<A>(static_cast<std::make_unsigned_t<A>>(a) +
                          static_cast<std::make_unsigned_t<A>>(b));
  else
    return a + b;
}

// Through a block of accumulators that stays in the first-level cache.
template <class T, Reduce kReduce>
void reduce_as(std::span<const std::byte* const> sources, std::span<std::byte* const> outputs,
               int64_t count) {
  using A = decltype(widen(T{}));
  constexpr int64_t kBlock = 1024;
  A sum[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    int64_t n = std::min(kBlock, count - begin);
    const T* first = reinterpret_cast<const T*>(sources[0]) + begin;
    const T* second = reinterpret_cast<const T*>(sources[1]) + begin;
    for (int64_t i = 0; i < n; ++i) sum[i] = combine<kReduce>(widen(first[i]), widen(second[i]));
    for (const std::byte* source : sources.subspan(2)) {
      const T* next = reinterpret_cast<const T*>(source) + begin;
      for (int64_t i = 0; i < n; ++i) sum[i] = combine<kReduce>(sum[i], widen(next[i]));
    }
    for (std::byte* output : outputs) {
      T* out = reinterpret_cast<T*>(output) + begin;
      for (int64_t i = 0; i < n; ++i) out[i] = narrow<T>(sum[i]);
    }
  }
}

template <class T, Reduce kReduce>
void reduce_onwards_as(const std::byte* before, std::span<const std::byte* const> sources,
                       std::byte* out, bool last, int64_t count) {
  using A = decltype(widen(T{}));
  constexpr int64_t kBlock = 1024;
  A sum[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    int64_t n = std::min(kBlock, count - begin);
    if (before != nullptr) {
      std::memcpy(sum, before + begin * sizeof(A), n * sizeof(A));
    } else {
      const T* first = reinterpret_cast<const T*>(sources[0]) + begin;
      for (int64_t i = 0; i < n; ++i) sum[i] = widen(first[i]);
    }
    for (const std::byte* source : sources.subspan(before != nullptr ? 0 : 1)) {
      const T* next = reinterpret_cast<const T*>(source) + begin;
      for (int64_t i = 0; i < n; ++i) sum[i] = combine<kReduce>(sum[i], widen(next[i]));
    }
    if (last) {
      T* to = reinterpret_cast<T*>(out) + begin;
      for (int64_t i = 0; i < n; ++i) to[i] = narrow<T>(sum[i]);
    } else {
      std::memcpy(out + begin * sizeof(A), sum, n * sizeof(A));
    }
  }
}

/// Calls `call` with a value of the C++ type that `dtype` stands for.
template <class F>
void with_type(DType dtype, F&& call) {
  switch (dtype) {
    case DType::f64:
      return call(double{});
    case DType::f32:
      return call(float{});
    case DType::bf16:
      return call(BFloat16{});
    case DType::f16:
      return call(Float16{});
    case DType::i64:
      return call(int64_t{});
    case DType::i32:
      return call(int32_t{});
    case DType::i16:
      return call(int16_t{});
    case DType::u16:
      return call(uint16_t{});
    case DType::i8:
      return call(int8_t{});
    case DType::u8:
      return call(uint8_t{});
    case DType::boolean:
      return call(bool{});
  }
  throw base::InternalError("a reduction of an unknown type");
}

}  // namespace

void reduce(std::span<const std::byte* const> sources, std::span<std::byte* const> outputs,
            int64_t count, DType dtype, Reduce how) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    if (how == Reduce::sum)
      reduce_as<T, Reduce::sum>(sources, outputs, count);
    else
      reduce_as<T, Reduce::max>(sources, outputs, count);
  });
}

DType accumulation_type(DType dtype) {
  return dtype == DType::bf16 || dtype == DType::f16 ? DType::f32 : dtype;
}

void reduce_onwards(const std::byte* before, std::span<const std::byte* const> sources,
                    std::byte* out, bool last, int64_t count, DType dtype, Reduce how) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    if (how == Reduce::sum)
      reduce_onwards_as<T, Reduce::sum>(before, sources, out, last, count);
    else
      reduce_onwards_as<T, Reduce::max>(before, sources, out, last, count);
  });
}

}  // namespace trireme::comm
