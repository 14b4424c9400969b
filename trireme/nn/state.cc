#include "trireme/nn/state.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "trireme/base/error.h"
#include "trireme/base/hash.h"

namespace trireme::nn {

const at::Tensor& State::at(const std::string& name) const {
  std::string known;
  for (const auto& [key, tensor] : tensors_) {
    if (key == name) return tensor;
    known += known.empty() ? key : ", " + key;
  }
  throw base::InternalError(fmt::format("no tensor '{}' in the state; there are: {}", name, known));
}

bool State::has(const std::string& name) const {
  for (const auto& entry : tensors_)
    if (entry.first == name) return true;
  return false;
}

void State::set(const std::string& name, at::Tensor tensor) {
  for (auto& entry : tensors_)
    if (entry.first == name) {
      entry.second = std::move(tensor);
      return;
    }
  tensors_.emplace_back(name, std::move(tensor));
}

void State::erase(const std::string& name) {
  std::erase_if(tensors_, [&](const auto& entry) { return entry.first == name; });
}

std::string to_string(const StateSpec& spec) {
  std::string text;
  for (const TensorSpec& t : spec) {
    text += fmt::format("{}{} {}[{}]{}", text.empty() ? "" : ", ", t.name, base::name_of(t.dtype),
                        fmt::join(t.shape, " x "), t.requires_grad ? "" : " (no gradient)");
  }
  return text.empty() ? "nothing" : text;
}

uint64_t schema_hash(const StateSpec& spec) { return base::hash_text(to_string(spec)); }

namespace {

at::Tensor to_tensor(const data::Field& field) {
  return field.dtype == base::DType::f32 ? at::tensor(field.reals, at::kFloat).reshape(field.shape)
                                         : at::tensor(field.values, at::kLong).reshape(field.shape);
}

int64_t length_of(const at::Tensor& field) { return field.dim() == 2 ? field.size(1) : 0; }

}  // namespace

Batch to_tensors(const data::Batch& batch) {
  Batch out;
  out.rows = batch.rows();
  for (const data::Field& field : batch.fields) {
    out.tensors.set(field.name, to_tensor(field));
    if (field.shape.size() == 2 && out.seq == 0) out.seq = field.shape[1];
  }
  const bool decodes = out.tensors.has("decoder_input_ids");
  if (decodes) out.seq = length_of(out.tensors.at("decoder_input_ids"));
  if (out.tensors.has("input_ids"))
    (decodes ? out.source_seq : out.seq) = length_of(out.tensors.at("input_ids"));
  out.samples = at::tensor(batch.samples, at::kLong);
  return out;
}

}  // namespace trireme::nn
