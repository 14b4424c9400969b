#include "trireme/nn/context.h"

#include <ATen/ATen.h>

#include "trireme/base/philox.h"

namespace trireme::nn {

uint64_t Random::key(uint64_t layer, uint64_t site) const {
  return base::stream_key(seed, "dropout", step, layer, site);
}

void WeightQueue::drain() {
  at::NoGradGuard no_grad;
  for (auto& work : work_) work();
  work_.clear();
}

std::pair<at::Tensor, at::Tensor> KvCache::append(int layer, const at::Tensor& key, const at::Tensor& value) {
  auto& [keys, values] = layers[layer];
  keys = keys.defined() ? at::cat({keys, key}, 2) : key;
  values = values.defined() ? at::cat({values, value}, 2) : value;
  return {keys, values};
}

}  // namespace trireme::nn
