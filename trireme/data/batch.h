#pragma once
// Batch (host side): a micro-batch as plain arrays, before it becomes tensors.

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::data {

/// The label that counts for nothing, as PyTorch and Hugging Face spell it.
inline constexpr int64_t kIgnoreLabel = -100;

struct Field {
  std::string name;            // "input_ids", "labels"
  std::vector<int64_t> shape;  // [rows, seq]
  std::vector<int64_t> values;
};

/// `samples[i]` is the index of row i in the global batch: the coordinate from which dropout draws.
struct Batch {
  std::vector<Field> fields;
  std::vector<int64_t> samples;
  int64_t rows() const { return static_cast<int64_t>(samples.size()); }
};

}  // namespace trireme::data
