#include "trireme/nn/state.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/hash.h"
#include "trireme/dist/device.h"

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

/// What was not read has a shape and no memory.
at::Tensor to_tensor(const data::Field& field) {
  if (!field.read) return at::zeros({}, at::kLong).expand(field.shape);
  return field.dtype == base::DType::f32 ? at::tensor(field.reals, at::kFloat).reshape(field.shape)
                                         : at::tensor(field.values, at::kLong).reshape(field.shape);
}

}  // namespace

BatchShape shape_of(const State& tensors) {
  BatchShape shape{.seq = 1};
  if (tensors.tensors().empty()) return shape;
  shape.rows = tensors.tensors().front().second.size(0);
  const auto is_matrix = [](const auto& entry) { return entry.second.dim() == 2; };
  const auto matrix = std::ranges::find_if(tensors.tensors(), is_matrix);
  if (matrix != tensors.tensors().end()) shape.seq = matrix->second.size(1);
  if (tensors.has("input_ids")) shape.seq = tensors.at("input_ids").size(-1);
  if (tensors.has("decoder_input_ids")) {
    shape.source_seq = shape.seq;
    shape.seq = tensors.at("decoder_input_ids").size(1);
  }
  return shape;
}

void flatten_choices(Batch& batch) {
  const auto dims = [&](const char* name) { return batch.tensors.has(name) ? batch.tensors.at(name).dim() : 0; };
  const bool views = dims("pixel_values") == 5;
  if (!views && dims("input_ids") != 3) return;
  batch.choices = batch.tensors.at(views ? "pixel_values" : "input_ids").size(1);
  for (auto& [name, tensor] : batch.tensors.tensors())
    if (views ? name == "pixel_values" : tensor.dim() == 3) tensor = tensor.flatten(0, 1);
  batch.rows *= batch.choices;
  if (!views) batch.seq = batch.tensors.at("input_ids").size(1);
  batch.samples = (batch.samples.unsqueeze(1) * batch.choices + at::arange(batch.choices, at::kLong)).flatten();
}

Batch to_tensors(const data::Batch& batch, c10::Device device) {
  Batch out;
  for (const data::Field& field : batch.fields) out.tensors.set(field.name, to_tensor(field));
  const BatchShape shape = shape_of(out.tensors);
  out.rows = batch.rows();
  out.seq = shape.seq;
  out.source_seq = shape.source_seq;
  out.samples = at::tensor(batch.samples, at::kLong);
  flatten_choices(out);
  for (const data::Field& field : batch.fields)
    if (!field.read) out.tensors.erase(field.name);
  for (auto& [name, tensor] : out.tensors.tensors()) tensor = dist::to_device(tensor, device);
  out.samples = dist::to_device(out.samples, device);
  return out;
}

}  // namespace trireme::nn
