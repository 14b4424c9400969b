#pragma once
// Batch (host side): a micro-batch as plain arrays, before it becomes tensors. A field holds 64-bit
// integers or 32-bit floats; its name is the argument's in Hugging Face's models: "input_ids",
// "attention_mask", "token_type_ids", "labels", "decoder_input_ids", "pixel_values", ...

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/base/dtype.h"

namespace trireme::data {

/// The label that counts for nothing, as PyTorch and Hugging Face spell it.
inline constexpr int64_t kIgnoreLabel = -100;

/// What every sample of a dataset holds under one name.
struct FieldSpec {
  std::string name;
  std::vector<int64_t> shape = {};       // of one sample; empty: one number
  base::DType dtype = base::DType::i64;  // or f32
  bool operator==(const FieldSpec&) const = default;
  /// Numbers of one sample.
  int64_t size() const {
    int64_t size = 1;
    for (int64_t length : shape) size *= length;
    return size;
  }
};

struct Field {
  std::string name;
  std::vector<int64_t> shape;        // [rows, ...]
  std::vector<int64_t> values = {};  // where the dtype is i64
  std::vector<float> reals = {};     // where it is f32
  base::DType dtype = base::DType::i64;
  bool read = true;  // false: this rank does not need it, and it has a shape alone
};

/// `samples[i]` is the index of row i in the global batch: the coordinate from which dropout draws.
struct Batch {
  std::vector<Field> fields;
  std::vector<int64_t> samples;
  int64_t rows() const { return static_cast<int64_t>(samples.size()); }
};

}  // namespace trireme::data
