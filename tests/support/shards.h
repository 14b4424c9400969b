#pragma once
// Shards: the parts that ranks hold, put together to whole tensors and compared by the project's measure
// (docs/architecture.md section 12).

#include <ATen/core/Tensor.h>

#include <map>
#include <mutex>
#include <string>

#include "trireme/nn/param_store.h"
#include "trireme/nn/tensor_part.h"

namespace trireme::test {

using Tensors = std::map<std::string, at::Tensor>;

/// Collects local parts from rank threads. A part that two ranks hold must be equal bit for bit.
class Gathered {
 public:
  void add(const std::string& name, const nn::Param& param, const at::Tensor& local);
  void add(const nn::TensorPart& part);
  /// InternalError unless every element of every tensor was given.
  Tensors take();

 private:
  std::mutex mutex_;
  Tensors whole_, seen_;
};

/// Copies a rank's slice out of a whole tensor.
void scatter(const at::Tensor& whole, const nn::Param& param, at::Tensor& local);

/// Every tensor of a safetensors file, copied.
Tensors read_tensors(const std::string& path);

/// Root mean square over all elements of all tensors.
double rms(const Tensors& tensors);
/// |a - b| / max(|b|, 1e-3 rms sqrt(n)).
double error(const at::Tensor& a, const at::Tensor& b, double rms);

struct Worst {
  double error = 0;
  std::string name;
};
/// The worst error over tensors of equal names; infinite where names differ.
Worst worst(const Tensors& a, const Tensors& b);

}  // namespace trireme::test
