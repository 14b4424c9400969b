#include "trireme/nn/param_store.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/philox.h"
#include "trireme/dist/redistribute.h"
#include "trireme/kernels/parallel.h"

namespace trireme::nn {
namespace {

using layout::Init;

// Flat offsets are multiples of a cache line, so that vector kernels see aligned parameters.
constexpr int64_t kAlignment = 16;

bool is_buffer(const Bucket& bucket) { return bucket.params.front()->spec.kind == layout::ParamKind::buffer; }

bool same_sync(const Bucket& bucket, const Param& param) {
  return is_buffer(bucket) == (param.spec.kind == layout::ParamKind::buffer) && bucket.stages == param.spec.layout.stages &&
         bucket.replicated_on_tp == param.spec.layout.tp.is_replicated() &&
         bucket.alone == param.spec.layout.data_rank.has_value() && bucket.params.front()->spec.dtype == param.spec.dtype &&
         bucket.params.front()->frozen == param.frozen;
}

// Does another data rank hold it?
bool is_elsewhere(const Param& param) { return param.spec.layout.data_rank && param.slice.count() == 0; }

// Views of a whole flat buffer as the bucket's parameters, or nothing.
at::Tensor view(const Bucket& bucket, size_t index, const at::Tensor& whole) {
  if (!whole.defined()) return {};
  const layout::Slice& slice = bucket.params[index]->slice;
  return whole.narrow(0, bucket.offsets[index], slice.count()).view(slice.shape());
}

/// Element `index` of Init::waves: the frequencies of He et al. (masked autoencoders, 2022), columns before rows.
double wave(const Init& init, int64_t index) {
  const int64_t row = index / init.features, feature = index % init.features, quarter = init.features / 4;
  if (row == 0) return 0;
  const int64_t which = feature / quarter, place = which < 2 ? (row - 1) % init.columns : (row - 1) / init.columns;
  const double angle = static_cast<double>(place) /
                       std::pow(10000.0, static_cast<double>(feature % quarter) / static_cast<double>(quarter));
  return which % 2 == 0 ? std::sin(angle) : std::cos(angle);
}

template <class T>
void fill(const Param& param, uint64_t seed, at::Tensor& values) {
  const Init& init = param.spec.init;
  uint64_t key = base::stream_key(seed, param.spec.average_of.empty() ? param.spec.name : param.spec.average_of);
  T* out = values.mutable_data_ptr<T>();
  layout::for_each_run(param.slice, param.spec.shape, [&](layout::Run run) {
    kernels::parallel_for(run.count, 1 << 14, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        uint64_t index = static_cast<uint64_t>(run.global + i);
        double value = 0;
        switch (init.kind) {
          case Init::Kind::zeros:
          case Init::Kind::lengths: break;
          case Init::Kind::ones: value = 1; break;
          case Init::Kind::constant: value = init.scale; break;
          case Init::Kind::waves: value = wave(init, run.global + i); break;
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

at::ScalarType wide_type(base::DType dtype) {
  return dtype == base::DType::f64 ? at::kDouble : at::kFloat;
}

void initialize(const Param& param, uint64_t seed, at::Tensor values) {
  base::check(values.is_contiguous() && values.numel() == param.slice.count(),
              "{}: its initial values need {} elements", param.spec.name, param.slice.count());
  if (!values.is_cpu()) {
    const at::Tensor drawn = at::empty(values.sizes(), values.scalar_type());
    initialize(param, seed, drawn);
    values.copy_(drawn);
    return;
  }
  switch (values.scalar_type()) {
    case at::kDouble: return fill<double>(param, seed, values);
    case at::kFloat: return fill<float>(param, seed, values);
    case at::kBFloat16: return fill<at::BFloat16>(param, seed, values);
    case at::kHalf: return fill<at::Half>(param, seed, values);
    default: throw base::InternalError(param.spec.name + ": no initial values for this dtype");
  }
}

Sharding zero_sharding(int stage, int ranks, int rank) {
  if (ranks == 1) return {};
  return {.gradients = stage >= 2, .parameters = stage >= 3, .ranks = ranks, .rank = rank};
}

void Bucket::set_data(at::Tensor whole) {
  data = std::move(whole);
  for (size_t i = 0; i < params.size(); ++i) params[i]->data = view(*this, i, data);
}

void Bucket::set_grad(at::Tensor whole) {
  grad = std::move(whole);
  for (size_t i = 0; i < params.size(); ++i) {
    params[i]->grad = view(*this, i, grad);
    params[i]->grad_begun = false;
  }
}

Param* ParamStore::declare(const layout::ParamSpec& spec, layout::Slice slice, int layer) {
  base::check(buckets_.empty(), "{}: declared after the store was materialized", spec.name);
  auto [entry, added] = by_name_.try_emplace(spec.name);
  if (added) {
    storage_.push_back(Param{.spec = spec, .slice = std::move(slice), .data = {}, .grad = {},
                             .frozen = spec.kind == layout::ParamKind::buffer});
    entry->second = &storage_.back();
  }
  base::check(entry->second->spec.shape == spec.shape, "{}: tied with another shape", spec.name);
  Param* param = entry->second;
  ++param->uses;
  if (std::ranges::find(param->layers, layer) == param->layers.end()) param->layers.push_back(layer);
  return param;
}

void ParamStore::materialize(uint64_t seed, bool gradients, const Allocate& allocate, int64_t bucket_bytes,
                             const Sharding& sharding, c10::Device device) {
  sharding_ = sharding;
  std::erase_if(by_name_, [](const auto& entry) { return is_elsewhere(*entry.second); });
  // The holders of a tie use its parameters in other layers each.
  const auto together = [&](const Bucket& bucket, const Param& param) {
    return same_sync(bucket, param) && (!(sharding.gradients || sharding.parameters) || bucket.stages.size() > 1 ||
                                        bucket.layers == param.layers);
  };
  // Gradients land in reverse order of use, so the first bucket completes first. The holders of a tie use its
  // parameters in orders of their own, and must lay them out alike.
  std::vector<Param*> order;
  for (auto it = storage_.rbegin(); it != storage_.rend(); ++it)
    if (!is_elsewhere(*it)) order.push_back(&*it);
  auto ties = std::stable_partition(order.begin(), order.end(),
                                    [](const Param* p) { return p->spec.layout.stages.size() == 1; });
  std::sort(ties, order.end(), [](const Param* a, const Param* b) { return a->spec.name < b->spec.name; });

  std::vector<int64_t> bytes;
  for (Param* param : order) {
    int64_t size = param->slice.count() * base::size_of(param->spec.dtype);
    size_t b = 0;
    while (b < buckets_.size() && !(together(buckets_[b], *param) && bytes[b] + size <= bucket_bytes)) ++b;
    if (b == buckets_.size()) {
      buckets_.push_back(Bucket{.params = {}, .offsets = {}, .stages = param->spec.layout.stages,
                                .replicated_on_tp = param->spec.layout.tp.is_replicated(),
                                .alone = param->spec.layout.data_rank.has_value()});
      bytes.push_back(0);
    }
    buckets_[b].params.push_back(param);
    for (int layer : param->layers)
      if (std::ranges::find(buckets_[b].layers, layer) == buckets_[b].layers.end()) buckets_[b].layers.push_back(layer);
    bytes[b] += size;
  }
  auto zeros = [&](int64_t count, at::ScalarType type) {
    return allocate ? allocate(count, type) : at::zeros({count}, at::TensorOptions(type).device(device));
  };
  for (Bucket& bucket : buckets_) {
    for (Param* param : bucket.params) {
      bucket.offsets.push_back(bucket.size);
      bucket.size += (param->slice.count() + kAlignment - 1) / kAlignment * kAlignment;
    }
    const Sharding split = bucket.alone ? Sharding() : sharding;
    bucket.shard = layout::split_range(bucket.size, split.ranks, split.rank);
    const base::DType dtype = bucket.params.front()->spec.dtype;
    bucket.set_data(at::zeros({bucket.size}, at::TensorOptions(dist::scalar_type(dtype)).device(device)));
    for (Param* param : bucket.params) initialize(*param, seed, param->data);
    if (split.parameters && !is_buffer(bucket)) {
      bucket.data_shard = zeros(bucket.shard.size(), dist::scalar_type(dtype));
      bucket.data_shard.copy_(bucket.data.narrow(0, bucket.shard.begin, bucket.shard.size()));
      bucket.set_data({});
    }
    if (!gradients || bucket.params.front()->frozen) continue;
    if (split.gradients)
      bucket.grad_shard = zeros(bucket.shard.size(), wide_type(dtype));
    else
      bucket.set_grad(zeros(bucket.size, wide_type(dtype)));
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

std::vector<Bucket*> ParamStore::buckets_of(int layer) {
  std::vector<Bucket*> found;
  for (Bucket& bucket : buckets_)
    if (std::ranges::find(bucket.layers, layer) != bucket.layers.end()) found.push_back(&bucket);
  return found;
}

void ParamStore::begin_step(int64_t micro_batches) {
  micro_batches_ = micro_batches;
  for (Param& param : storage_) param.contributions = 0, param.grad_begun = false;
}

bool ParamStore::complete(const Bucket& bucket) const {
  return std::ranges::all_of(bucket.params, [&](const Param* param) {
    return param->contributions == micro_batches_ * param->uses;
  });
}

void ParamStore::audit() const {
  for (const auto& [name, param] : by_name_) {
    if (param->spec.kind == layout::ParamKind::buffer) continue;
    if (micro_batches_ > 0 && param->contributions == 0) {
      if (param->frozen) continue;
      throw base::ConfigError(fmt::format("{} is trained, but no layer made a gradient of it in this step: freeze it "
                                          "(optim.groups: [{{pattern: \"{}\", freeze: true}}]), or leave it out of the model",
                                          name, name));
    }
    base::check(param->contributions == micro_batches_ * param->uses,
                "{} got {} gradient contributions in this step, expected {} ({} micro-batches x {} uses)",
                name, param->contributions, micro_batches_ * param->uses, micro_batches_, param->uses);
  }
}

void ParamStore::average(double keeps) {
  at::NoGradGuard no_grad;
  for (Param& own : storage_) {
    if (own.spec.average_of.empty()) continue;
    const Param* param = find(own.spec.average_of);
    base::check(param && param->data.defined() && param->slice == own.slice, "{}: its parameter is not there whole",
                own.spec.name);
    own.data.mul_(keeps).add_(param->data, 1 - keeps);
  }
}

}  // namespace trireme::nn
