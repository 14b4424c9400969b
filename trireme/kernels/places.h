#pragma once
// Places: where the features of a strided tensor lie in memory, for kernels that work on one place after the other.

#include <ATen/core/Tensor.h>

namespace trireme::kernels {

/// The tensor, or a copy, whose last dimension has its values side by side.
inline at::Tensor with_features_together(const at::Tensor& t) {
  return t.stride(-1) == 1 || t.size(-1) <= 1 ? t : t.contiguous();
}

/// By the first index, or by the first two. Keeps no reference to the tensor.
class Places {
 public:
  explicit Places(const at::Tensor& t)
      : data_(static_cast<char*>(const_cast<void*>(t.const_data_ptr()))),
        first_(t.stride(0) * static_cast<int64_t>(t.element_size())),
        second_(t.stride(1) * static_cast<int64_t>(t.element_size())) {}
  char* at(int64_t i) const { return data_ + i * first_; }
  char* at(int64_t i, int64_t j) const { return at(i) + j * second_; }

 private:
  char* data_;
  int64_t first_, second_;
};

}  // namespace trireme::kernels
