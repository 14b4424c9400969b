#include "trireme/optim/sharded_optimizer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>

#include "trireme/base/error.h"
#include "trireme/dist/redistribute.h"
#include "trireme/optim/groups.h"

namespace trireme::optim {
namespace {

layout::Range place(const nn::Bucket& bucket, size_t index) {
  const int64_t begin = bucket.offsets[index];
  return {begin, begin + bucket.params[index]->slice.count()};
}

layout::Range shifted(layout::Range range, int64_t by) {
  return {range.begin - by, range.end - by};
}

// The elements of a parameter's local slice that each data rank steps.
std::vector<layout::Range> shards_of(const nn::Bucket& bucket, size_t index, int ranks) {
  std::vector<layout::Range> shards;
  for (int r = 0; r < ranks; ++r)
    shards.push_back(shifted(layout::intersect(place(bucket, index),
                                       layout::split_range(bucket.size, ranks, r)),
                             bucket.offsets[index]));
  return shards;
}

// Elements of a bucket's flat buffer, of which the whole or this rank's shard is kept.
at::Tensor piece(const nn::Bucket& bucket, const at::Tensor& whole, const at::Tensor& shard,
                 layout::Range range) {
  if (!shard.defined()) return whole.narrow(0, range.begin, range.size());
  return shard.narrow(0, range.size() > 0 ? range.begin - bucket.shard.begin : 0, range.size());
}

WholeTensors whole_tensors(const dist::DeviceMesh& mesh, const nn::ParamStore& store,
                           bool sharded) {
  std::vector<WholeTensors::Place> places;
  for (const nn::Bucket& bucket : store.buckets())
    for (size_t i = 0; i < bucket.params.size(); ++i)
      if (!bucket.params[i]->frozen)
        places.push_back(
            {bucket.params[i], shards_of(bucket, i, sharded ? mesh.dp.size() : 1)});
  return {mesh, std::move(places)};
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(dist::World& world, const dist::DeviceMesh& mesh,
                                   nn::ParamStore& store, const config::Optim& options,
                                   int zero_stage)
    : mesh_(&mesh),
      options_(options),
      sharded_(zero_stage >= 1),
      sync_(world, mesh, store, zero_stage),
      optimizer_(make_optimizer(options, whole_tensors(mesh, store, sharded_))) {
  for (const nn::Param* param : store.params())
    base::check(param->frozen == is_frozen(param->spec.name, options),
                "{} is {}frozen, unlike optim.groups", param->spec.name,
                param->frozen ? "" : "not ");
  for (nn::Bucket& bucket : store.buckets())
    if (!bucket.params.front()->frozen) add(bucket);
  if (optimizer_->collective())
    for (const BucketState& entry : buckets_)
      all_.insert(all_.end(), entry.segments.begin(), entry.segments.end());
}

void ShardedOptimizer::add(nn::Bucket& bucket) {
  const at::Tensor& data = bucket.data_shard.defined() ? bucket.data_shard : bucket.data;
  const at::Tensor& grad = bucket.grad_shard.defined() ? bucket.grad_shard : bucket.grad;
  base::check(grad.defined() && grad.scalar_type() == data.scalar_type(),
              "the optimizer steps fp32 or fp64 parameters with gradients of their type");
  BucketState& entry = buckets_.emplace_back();
  entry.bucket = &bucket;
  entry.range = sharded_ ? sync_.shard(bucket) : layout::Range{0, bucket.size};
  for (size_t i = 0; i < bucket.params.size(); ++i) {
    const nn::Param* param = bucket.params[i];
    const layout::Range held = shifted(layout::intersect(place(bucket, i), entry.range), bucket.offsets[i]);
    entry.params.push_back({param, held, optimizer_->states(param->spec), {}});
    ParamState& own = entry.params.back();
    for (const State& kind : own.kinds)
      own.tensors.push_back(
          at::zeros({kind.shape ? layout::element_count(*kind.shape) : held.size()},
                    at::TensorOptions(data.scalar_type())));
    const bool keeps_whole =
        std::ranges::any_of(own.kinds, [](const State& kind) { return kind.shape.has_value(); });
    // Segments end where shards do, with ZeRO 0 too: data ranks share the work of the norm, and its
    // sums do not depend on the ZeRO stage.
    const std::vector<layout::Range> shards = shards_of(bucket, i, mesh_->dp.size());
    for (int r = 0; r < mesh_->dp.size(); ++r) {
      if (sharded_ && r != mesh_->dp.rank()) continue;
      const layout::Range flat = shards[static_cast<size_t>(r)];
      // A state that every rank keeps whole moves where none of the elements are, too.
      if (flat.size() == 0 && !(keeps_whole && r == mesh_->dp.rank())) continue;
      const layout::Range range = shifted(flat, -bucket.offsets[i]);
      Segment segment{.param = param,
                      .flat = flat,
                      .data = piece(bucket, bucket.data, bucket.data_shard, range),
                      .grad = piece(bucket, bucket.grad, bucket.grad_shard, range),
                      .state = {},
                      .weight_decay = weight_decay_of(param->spec.name, options_),
                      .lr_scale = lr_scale_of(param->spec.name, options_)};
      for (size_t s = 0; s < own.kinds.size(); ++s)
        segment.state.push_back(own.kinds[s].shape ? own.tensors[s]
                                                   : own.tensors[s].narrow(
                                                         0, flat.begin - held.begin, flat.size()));
      if (r == mesh_->dp.rank() && counts_for_norm(param->spec, mesh_->coord))
        counted_.push_back(segment);
      entry.segments.push_back(std::move(segment));
    }
  }
}

StepReport ShardedOptimizer::step(double lr) {
  StepReport report;
  const auto began = std::chrono::steady_clock::now();
  sync_.finish();
  report.wait_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  report.grad_norm = total_norm(counted_, options_.clip_grad_norm_type, mesh_->world);
  double norm = report.grad_norm;
  if (options_.clip_grad_value) {
    for (const BucketState& entry : buckets_)
      for (const Segment& segment : entry.segments)
        segment.grad.clamp_(-*options_.clip_grad_value, *options_.clip_grad_value);
    if (options_.clip_grad_max_norm)
      norm = total_norm(counted_, options_.clip_grad_norm_type, mesh_->world);
  }
  report.clip_factor = clip_factor(norm, options_.clip_grad_max_norm);
  ++steps_;
  update(lr, report.clip_factor);
  return report;
}

void ShardedOptimizer::update(double lr, double grad_scale) {
  if (optimizer_->collective()) optimizer_->step(all_, lr, steps_, grad_scale);
  std::vector<comm::Work> gathers;
  for (BucketState& entry : buckets_) {
    if (!optimizer_->collective()) optimizer_->step(entry.segments, lr, steps_, grad_scale);
    nn::Bucket& bucket = *entry.bucket;
    if (bucket.data_shard.defined()) {
      base::check(!bucket.data.defined(), "parameters are stepped while they are gathered");
      continue;
    }
    if (!sharded_) continue;
    auto* flat = static_cast<std::byte*>(bucket.data.mutable_data_ptr());
    gathers.push_back(mesh_->dp.all_gather(
        flat + entry.range.begin * bucket.data.element_size(), flat,
        layout::split_sizes(bucket.size, mesh_->dp.size()), dist::dtype_of(bucket.data)));
  }
  for (comm::Work& gather : gathers) gather.wait();
}

std::vector<nn::TensorPart> ShardedOptimizer::state() const {
  std::vector<nn::TensorPart> parts;
  for (const BucketState& entry : buckets_) {
    for (const ParamState& own : entry.params) {
      const layout::ParamSpec& spec = own.param->spec;
      const bool first_data_rank = mesh_->dp.rank() == 0;
      for (size_t s = 0; s < own.kinds.size(); ++s) {
        const std::string name = spec.name + "." + own.kinds[s].name;
        if (own.kinds[s].shape) {
          layout::ParamSpec whole{.name = name, .shape = *own.kinds[s].shape};
          whole.layout.stages = spec.layout.stages;
          parts.push_back({.name = name,
                           .global_shape = whole.shape,
                           .slice = layout::whole(whole.shape),
                           .flat = {0, own.tensors[s].numel()},
                           .data = own.tensors[s],
                           .owner = first_data_rank && counts_for_norm(whole, mesh_->coord)});
        } else if (own.flat.size() > 0) {
          parts.push_back(
              {.name = name,
               .global_shape = spec.shape,
               .slice = own.param->slice,
               .flat = own.flat,
               .data = own.tensors[s],
               .owner = counts_for_norm(spec, mesh_->coord) && (sharded_ || first_data_rank)});
        }
      }
    }
  }
  std::ranges::sort(parts, {}, &nn::TensorPart::name);
  return parts;
}

}  // namespace trireme::optim
