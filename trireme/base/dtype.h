#pragma once
// DType: the element types that trireme moves, stores and computes with.

#include <cstdint>
#include <string_view>

namespace trireme::base {

enum class DType : uint8_t { f64, f32, bf16, f16, i64, i32, i16, u16, i8, u8, boolean };

/// Bytes of one element.
int64_t size_of(DType dtype);
/// The name that configuration files use: fp64, fp32, bf16, fp16, int64, int32, int16, uint16, int8, uint8, bool.
std::string_view name_of(DType dtype);
/// Inverse of name_of; throws ConfigError with the allowed names.
DType dtype_of(std::string_view name);
bool is_floating(DType dtype);

}  // namespace trireme::base
