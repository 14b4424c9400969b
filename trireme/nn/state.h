#pragma once
// State: the named tensors that one layer hands to the next, and one stage to the next.
// Batch: the tensors of one micro-batch as the loader made them; every stage sees its own copy.
// StateSpec: a State without data, from which both ends of a pipeline edge know what travels.

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "trireme/base/dtype.h"
#include "trireme/data/batch.h"
#include "trireme/layout/param_spec.h"

namespace trireme::nn {

class State {
 public:
  State() = default;
  State(std::initializer_list<std::pair<std::string, at::Tensor>> tensors) : tensors_(tensors) {}
  /// InternalError naming the tensors there are.
  const at::Tensor& at(const std::string& name) const;
  bool has(const std::string& name) const;
  /// Replaces or appends.
  void set(const std::string& name, at::Tensor tensor);
  void erase(const std::string& name);
  std::vector<std::pair<std::string, at::Tensor>>& tensors() { return tensors_; }
  const std::vector<std::pair<std::string, at::Tensor>>& tensors() const { return tensors_; }

 private:
  std::vector<std::pair<std::string, at::Tensor>> tensors_;
};

struct TensorSpec {
  std::string name;
  layout::Shape shape;  // as this rank holds it
  base::DType dtype = base::DType::f32;
  bool requires_grad = true;
};
using StateSpec = std::vector<TensorSpec>;
/// Equal exactly for equal names, shapes, dtypes and gradients.
uint64_t schema_hash(const StateSpec& spec);
std::string to_string(const StateSpec& spec);

/// What a micro-batch's tensors measure; every stage knows it, so every stage knows all shapes.
struct BatchShape {
  int64_t rows = 0, seq = 0;
  int64_t source_seq = 0;  // of the encoder's input, in encoder-decoder models
  auto operator<=>(const BatchShape&) const = default;
};

struct Batch {
  State tensors;       // named as Hugging Face's arguments: "input_ids", "labels" [rows, seq], int64; "pixel_values"
  at::Tensor samples;  // [rows] int64: index of each row in the global batch
  int64_t rows = 0, seq = 0, source_seq = 0;
  int64_t position = 0;  // of the first token, when earlier ones are in a cache
  int64_t choices = 1;   // rows that are the choices of one question (views of one image), one after the other
  BatchShape shape() const { return {rows, seq, source_seq}; }
};
/// What the tensors measure, by Hugging Face's names: `seq` positions of decoder_input_ids, and then `source_seq` of
/// input_ids; else `seq` of input_ids, or of the first matrix; else 1 (images, whose models know their number of patches).
BatchShape shape_of(const State& tensors);
/// Makes rows of what is [rows, choices, seq], as multiple choice has it, and of several views of an image, pixel_values
/// [rows, views, channels, height, width]; each is a sample of its own.
void flatten_choices(Batch& batch);
/// `device`: where they go, by way of pinned memory and without waiting.
Batch to_tensors(const data::Batch& batch, c10::Device device = c10::kCPU);

}  // namespace trireme::nn
