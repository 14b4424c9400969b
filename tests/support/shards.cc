#include "tests/support/shards.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/dist/device.h"
#include "trireme/dist/redistribute.h"
#include "trireme/formats/safetensors.h"

namespace trireme::test {

void Gathered::add(const std::string& name, const nn::Param& param, const at::Tensor& local) {
  add({.name = name,
       .global_shape = param.spec.shape,
       .slice = param.slice,
       .flat = {0, param.slice.count()},
       .data = local});
}

void Gathered::add(const nn::TensorPart& given) {
  nn::TensorPart part = given;
  part.data = dist::to_host(given.data);
  std::lock_guard lock(mutex_);
  const std::string& name = part.name;
  auto [it, added] = whole_.try_emplace(name);
  if (added) {
    it->second = at::zeros({layout::element_count(part.global_shape)}, part.data.options());
    seen_[name] = at::zeros({layout::element_count(part.global_shape)}, at::kBool);
  }
  at::Tensor flat = part.data.contiguous().flatten(), whole = it->second;
  layout::for_each_run(part.slice, part.global_shape, [&](layout::Run run) {
    const int64_t begin = std::max(run.local, part.flat.begin);
    const int64_t count = std::min(run.local + run.count, part.flat.end) - begin;
    if (count <= 0) return;
    const int64_t global = run.global + begin - run.local;
    at::Tensor to = whole.narrow(0, global, count),
               from = flat.narrow(0, begin - part.flat.begin, count);
    at::Tensor seen = seen_[name].narrow(0, global, count);
    bool differs = seen.logical_and(to.ne(from)).any().item<bool>();
    base::check(!differs, "{}: two ranks hold different copies", name);
    to.copy_(from);
    seen.fill_(true);
  });
}

Tensors Gathered::take() {
  for (const auto& [name, seen] : seen_)
    base::check(seen.all().item<bool>(), "{}: elements that no rank holds", name);
  return std::move(whole_);
}

void scatter(const at::Tensor& whole, const nn::Param& param, at::Tensor& local) {
  at::Tensor from = whole.to(local.scalar_type()).contiguous().flatten();
  layout::for_each_run(param.slice, param.spec.shape, [&](layout::Run run) {
    local.view(-1).narrow(0, run.local, run.count).copy_(from.narrow(0, run.global, run.count));
  });
}

Tensors read_tensors(const std::string& path) {
  formats::SafetensorsFile file(path);
  Tensors out;
  for (const auto& [name, stored] : file.tensors()) {
    out[name] = at::from_blob(const_cast<std::byte*>(stored.bytes.data()), stored.shape,
                              at::TensorOptions(dist::scalar_type(stored.dtype)))
                    .clone();
  }
  return out;
}

double rms(const Tensors& tensors) {
  double squares = 0, count = 0;
  for (const auto& [_, t] : tensors) {
    squares += t.to(at::kDouble).square().sum().item<double>();
    count += static_cast<double>(t.numel());
  }
  return count == 0 ? 0 : std::sqrt(squares / count);
}

double error(const at::Tensor& a, const at::Tensor& b, double rms) {
  at::Tensor x = a.to(at::kDouble).flatten(), y = b.to(at::kDouble).flatten();
  if (x.numel() != y.numel()) return std::numeric_limits<double>::infinity();
  double floor = 1e-3 * rms * std::sqrt(static_cast<double>(y.numel()));
  double difference = (x - y).norm().item<double>(),
         size = std::max(y.norm().item<double>(), floor);
  if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
  return difference == 0 ? 0 : difference / size;
}

Worst worst(const Tensors& a, const Tensors& b) {
  Worst found;
  double scale = rms(b);
  if (a.size() != b.size())
    return {std::numeric_limits<double>::infinity(), "the sets of names differ"};
  for (const auto& [name, tensor] : b) {
    auto it = a.find(name);
    double e =
        it == a.end() ? std::numeric_limits<double>::infinity() : error(it->second, tensor, scale);
    if (e > found.error) found = {e, name};
  }
  return found;
}

}  // namespace trireme::test
