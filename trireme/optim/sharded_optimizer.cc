#include "trireme/optim/sharded_optimizer.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/dist/redistribute.h"

namespace trireme::optim {
namespace {

layout::Range intersect(layout::Range a, layout::Range b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

layout::Range place(const nn::Bucket& bucket, size_t index) {
  const int64_t begin = bucket.offsets[index];
  return {begin, begin + bucket.params[index]->slice.count()};
}

layout::Range shifted(layout::Range range, int64_t by) {
  return {range.begin - by, range.end - by};
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(dist::World& world, const dist::DeviceMesh& mesh,
                                   nn::ParamStore& store, const config::Optim& options,
                                   int zero_stage)
    : mesh_(&mesh),
      options_(options),
      sharded_(zero_stage >= 1),
      sync_(world, mesh, store, zero_stage),
      optimizer_(make_optimizer(options)) {
  for (nn::Bucket& bucket : store.buckets()) {
    base::check(bucket.grad.defined() && bucket.grad.scalar_type() == bucket.data.scalar_type(),
                "the optimizer steps fp32 or fp64 parameters with gradients of their type");
    const int64_t size = bucket.data.numel();
    BucketState& entry = buckets_.emplace_back();
    entry.bucket = &bucket;
    entry.range = sharded_ ? sync_.shard(bucket) : layout::Range{0, size};
    for (size_t s = 0; s < optimizer_->state_names().size(); ++s)
      entry.states.push_back(at::zeros({entry.range.size()}, bucket.data.options()));
    // Segments end where shards do, with ZeRO 0 too: data ranks share the work of the norm, and its
    // sums do not depend on the ZeRO stage.
    for (size_t i = 0; i < bucket.params.size(); ++i) {
      const nn::Param* param = bucket.params[i];
      for (int r = 0; r < mesh.dp.size(); ++r) {
        const layout::Range flat = intersect(
            intersect(place(bucket, i), layout::split_range(size, mesh.dp.size(), r)), entry.range);
        if (flat.size() == 0) continue;
        Segment segment{.param = param,
                        .flat = shifted(flat, bucket.offsets[i]),
                        .data = bucket.data.narrow(0, flat.begin, flat.size()),
                        .grad = bucket.grad.narrow(0, flat.begin, flat.size()),
                        .state = {},
                        .weight_decay = weight_decay_of(param->spec.name, options)};
        for (const at::Tensor& state : entry.states)
          segment.state.push_back(state.narrow(0, flat.begin - entry.range.begin, flat.size()));
        if (r == mesh.dp.rank() && counts_for_norm(param->spec, mesh.coord))
          counted_.push_back(segment);
        entry.segments.push_back(std::move(segment));
      }
    }
  }
}

StepReport ShardedOptimizer::step(double lr) {
  sync_.finish();
  StepReport report;
  report.grad_norm = total_norm(counted_, options_.clip_grad_norm_type, mesh_->world);
  report.clip_factor = clip_factor(report.grad_norm, options_.clip_grad_max_norm);
  ++steps_;
  std::vector<comm::Work> gathers;
  for (BucketState& entry : buckets_) {
    optimizer_->step(entry.segments, lr, steps_, report.clip_factor);
    if (!sharded_) continue;
    at::Tensor& data = entry.bucket->data;
    auto* flat = static_cast<std::byte*>(data.mutable_data_ptr());
    gathers.push_back(mesh_->dp.all_gather(flat + entry.range.begin * data.element_size(), flat,
                                           layout::split_sizes(data.numel(), mesh_->dp.size()),
                                           dist::dtype_of(data)));
  }
  for (comm::Work& gather : gathers) gather.wait();
  return report;
}

std::vector<nn::TensorPart> ShardedOptimizer::state() const {
  std::vector<nn::TensorPart> parts;
  for (const BucketState& entry : buckets_) {
    for (size_t i = 0; i < entry.bucket->params.size(); ++i) {
      const nn::Param* param = entry.bucket->params[i];
      const layout::Range held = intersect(place(*entry.bucket, i), entry.range);
      if (held.size() == 0) continue;
      const bool owner =
          counts_for_norm(param->spec, mesh_->coord) && (sharded_ || mesh_->dp.rank() == 0);
      for (size_t s = 0; s < entry.states.size(); ++s)
        parts.push_back(
            {.name = param->spec.name + "." + optimizer_->state_names()[s],
             .global_shape = param->spec.shape,
             .slice = param->slice,
             .flat = shifted(held, entry.bucket->offsets[i]),
             .data = entry.states[s].narrow(0, held.begin - entry.range.begin, held.size()),
             .owner = owner});
    }
  }
  std::ranges::sort(parts, {}, &nn::TensorPart::name);
  return parts;
}

}  // namespace trireme::optim
