#include "trireme/nn/param_store.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/philox.h"
#include "trireme/dist/redistribute.h"
#include "trireme/kernels/parallel.h"

namespace trireme::nn {
namespace {

using layout::Init;

// Flat offsets are multiples of a cache line, so that vector kernels see aligned parameters.
constexpr int64_t kAlignment = 16;

at::ScalarType gradient_type(base::DType dtype) {
  return dtype == base::DType::f64 ? at::kDouble : at::kFloat;
}

bool same_sync(const Bucket& bucket, const Param& param) {
  return bucket.stages == param.spec.layout.stages &&
         bucket.replicated_on_tp == param.spec.layout.tp.is_replicated() &&
         bucket.params.front()->spec.dtype == param.spec.dtype &&
         bucket.params.front()->frozen == param.frozen;
}

template <class T>
void fill(Param& param, uint64_t seed) {
  const Init& init = param.spec.init;
  uint64_t key = base::stream_key(seed, param.spec.name);
  T* out = param.data.data_ptr<T>();
  layout::for_each_run(param.slice, param.spec.shape, [&](layout::Run run) {
    kernels::parallel_for(run.count, 1 << 14, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        uint64_t index = static_cast<uint64_t>(run.global + i);
        double value = 0;
        switch (init.kind) {
          case Init::Kind::zeros: break;
          case Init::Kind::ones: value = 1; break;
          case Init::Kind::normal: value = init.scale * base::normal(key, index); break;
          case Init::Kind::uniform:
            value = init.scale * (2 * base::uniform(base::philox(key, {static_cast<uint32_t>(index),
                                                                       static_cast<uint32_t>(index >> 32), 0, 2})[0]) - 1);
            break;
        }
        out[run.local + i] = static_cast<T>(static_cast<float>(value));
      }
    });
  });
}

}  // namespace

void initialize(Param& param, uint64_t seed) {
  switch (param.data.scalar_type()) {
    case at::kDouble: return fill<double>(param, seed);
    case at::kFloat: return fill<float>(param, seed);
    case at::kBFloat16: return fill<at::BFloat16>(param, seed);
    case at::kHalf: return fill<at::Half>(param, seed);
    default: throw base::InternalError(param.spec.name + ": no initial values for this dtype");
  }
}

Param* ParamStore::declare(const layout::ParamSpec& spec, layout::Slice slice) {
  base::check(buckets_.empty(), "{}: declared after the store was materialized", spec.name);
  auto [entry, added] = by_name_.try_emplace(spec.name);
  if (added) {
    storage_.push_back(Param{.spec = spec, .slice = std::move(slice), .data = {}, .grad = {}});
    entry->second = &storage_.back();
  }
  base::check(entry->second->spec.shape == spec.shape, "{}: tied with another shape", spec.name);
  ++entry->second->uses;
  return entry->second;
}

void ParamStore::materialize(uint64_t seed, bool gradients, const Allocate& allocate, int64_t bucket_bytes) {
  // Gradients land in reverse order of use, so the first bucket completes first. The holders of a tie use its
  // parameters in orders of their own, and must lay them out alike.
  std::vector<Param*> order;
  for (auto it = storage_.rbegin(); it != storage_.rend(); ++it) order.push_back(&*it);
  auto ties = std::stable_partition(order.begin(), order.end(),
                                    [](const Param* p) { return p->spec.layout.stages.size() == 1; });
  std::sort(ties, order.end(), [](const Param* a, const Param* b) { return a->spec.name < b->spec.name; });

  std::vector<int64_t> bytes;
  for (Param* param : order) {
    int64_t size = param->slice.count() * base::size_of(param->spec.dtype);
    size_t b = 0;
    while (b < buckets_.size() && !(same_sync(buckets_[b], *param) && bytes[b] + size <= bucket_bytes)) ++b;
    if (b == buckets_.size()) {
      buckets_.push_back(Bucket{.params = {}, .offsets = {}, .data = {}, .grad = {}, .stages = param->spec.layout.stages,
                                .replicated_on_tp = param->spec.layout.tp.is_replicated()});
      bytes.push_back(0);
    }
    buckets_[b].params.push_back(param);
    bytes[b] += size;
  }
  auto zeros = [&](int64_t count, at::ScalarType type) {
    return allocate ? allocate(count, type) : at::zeros({count}, type);
  };
  for (Bucket& bucket : buckets_) {
    int64_t total = 0;
    for (Param* param : bucket.params) {
      bucket.offsets.push_back(total);
      total += (param->slice.count() + kAlignment - 1) / kAlignment * kAlignment;
    }
    base::DType dtype = bucket.params.front()->spec.dtype;
    const bool has_grad = gradients && !bucket.params.front()->frozen;
    bucket.data = at::zeros({total}, dist::scalar_type(dtype));
    if (has_grad) bucket.grad = zeros(total, gradient_type(dtype));
    for (size_t i = 0; i < bucket.params.size(); ++i) {
      Param& param = *bucket.params[i];
      auto view = [&](const at::Tensor& flat) {
        return flat.narrow(0, bucket.offsets[i], param.slice.count()).view(param.slice.shape());
      };
      param.data = view(bucket.data);
      if (has_grad) param.grad = view(bucket.grad);
      initialize(param, seed);
    }
  }
}

std::vector<Param*> ParamStore::params() const {
  std::vector<Param*> all;
  for (const auto& [name, param] : by_name_) all.push_back(param);
  return all;
}

Param* ParamStore::find(const std::string& name) const {
  auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : it->second;
}

void ParamStore::begin_step(int64_t micro_batches) {
  micro_batches_ = micro_batches;
  for (Param& param : storage_) param.contributions = 0;
}

bool ParamStore::complete(const Bucket& bucket) const {
  return std::ranges::all_of(bucket.params, [&](const Param* param) {
    return param->contributions == micro_batches_ * param->uses;
  });
}

void ParamStore::audit() const {
  for (const Param& param : storage_) {
    base::check(param.contributions == micro_batches_ * param.uses,
                "{} got {} gradient contributions in this step, expected {} ({} micro-batches x {} uses)",
                param.spec.name, param.contributions, micro_batches_ * param.uses, micro_batches_, param.uses);
  }
}

}  // namespace trireme::nn
