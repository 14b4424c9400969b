#include "trireme/base/dtype.h"

#include <array>
#include <string>

#include "trireme/base/error.h"

namespace trireme::base {
namespace {
struct Row {
  DType dtype;
  std::string_view name;
  int64_t size;
};
constexpr std::array<Row, 11> kRows = {{{DType::f64, "fp64", 8},
                                        {DType::f32, "fp32", 4},
                                        {DType::bf16, "bf16", 2},
                                        {DType::f16, "fp16", 2},
                                        {DType::i64, "int64", 8},
                                        {DType::i32, "int32", 4},
                                        {DType::i16, "int16", 2},
                                        {DType::u16, "uint16", 2},
                                        {DType::i8, "int8", 1},
                                        {DType::u8, "uint8", 1},
                                        {DType::boolean, "bool", 1}}};
}  // namespace

int64_t size_of(DType dtype) { return kRows[static_cast<size_t>(dtype)].size; }
std::string_view name_of(DType dtype) { return kRows[static_cast<size_t>(dtype)].name; }
bool is_floating(DType dtype) { return dtype <= DType::f16; }

DType dtype_of(std::string_view name) {
  std::string allowed;
  for (const Row& row : kRows) {
    if (row.name == name) return row.dtype;
    allowed += allowed.empty() ? "" : ", ";
    allowed += row.name;
  }
  throw ConfigError(fmt::format("unknown dtype '{}'; allowed: {}", name, allowed));
}

}  // namespace trireme::base
