#pragma once
// Npy: an array in NumPy's .npy format (versions 1 and 2, C order), mapped.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/io.h"

namespace trireme::data {

class Npy {
 public:
  /// FormatError: no .npy file, an order or byte order that is not supported, a size that does not
  /// fit.
  explicit Npy(const std::string& path);
  /// The type without its byte order: "u1", "i8", "f4", ...
  const std::string& type() const { return type_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  std::string_view bytes() const;
  /// The numbers of an array of integers; FormatError for another type.
  std::vector<int64_t> integers() const;

 private:
  base::MappedFile file_;
  std::string type_;
  std::vector<int64_t> shape_;
  int64_t begin_ = 0;
};

}  // namespace trireme::data
