#pragma once
// What the reader and the writer of indexed datasets share: the magics, the codes of the types of
// ids, and unaligned loads. Internal to index*.cc; the formats are described in docs/data.md.

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "trireme/base/dtype.h"
#include "trireme/base/error.h"

namespace trireme::data::format {

static_assert(std::endian::native == std::endian::little, "the format is read in place");

inline constexpr std::string_view kMegatronMagic{"MMIDIDX\0\0", 9};
inline constexpr int64_t kMegatronHeader = 34;
inline constexpr std::string_view kTorchnetMagic{"TNTIDX\0\0", 8};
inline constexpr int64_t kTorchnetHeader = 56;

struct Code {
  uint8_t code;
  base::DType dtype;
};
// Codes 6 and 7 mean float and double, in one order or the other by producer: no token ids.
inline constexpr std::array<Code, 6> kCodes{{{1, base::DType::u8},
                                             {2, base::DType::i8},
                                             {3, base::DType::i16},
                                             {4, base::DType::i32},
                                             {5, base::DType::i64},
                                             {8, base::DType::u16}}};

/// The code of a type; ConfigError for one that cannot hold ids.
uint8_t code_of(base::DType dtype);
/// "a/b.idx" and "a/b.bin" name the prefix "a/b", as "a/b" does.
std::string without_ending(const std::string& prefix);

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

/// Calls `use` with a zero of the C++ type of `dtype`.
template <class Use>
void with_type(base::DType dtype, Use&& use) {
  switch (dtype) {
    case base::DType::u8:
      return use(uint8_t{});
    case base::DType::i8:
      return use(int8_t{});
    case base::DType::i16:
      return use(int16_t{});
    case base::DType::i32:
      return use(int32_t{});
    case base::DType::i64:
      return use(int64_t{});
    case base::DType::u16:
      return use(uint16_t{});
    default:
      throw base::InternalError("not a type of token ids");
  }
}

}  // namespace trireme::data::format
