#include "trireme/optim/sharded_optimizer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/dist/device.h"
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
  if (bucket.alone) ranks = 1;
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
                                   int zero_stage, std::optional<base::DType> travel)
    : mesh_(&mesh),
      options_(options),
      sharded_(zero_stage >= 1),
      sync_(world, mesh, store, zero_stage, travel),
      optimizer_(make_optimizer(options, whole_tensors(mesh, store, sharded_))) {
  base::check(!optimizer_->collective() || !sharded_ || std::ranges::none_of(store.buckets(), &nn::Bucket::alone),
              "{} works on all data ranks together, which hold other parameters each", options.name);
  for (const nn::Param* param : store.params())
    base::check(param->frozen == is_frozen(param->spec, options),
                "{} is {}frozen, unlike optim.groups", param->spec.name,
                param->frozen ? "" : "not ");
  if (options_.offload && !mesh.device.is_cpu())
    throw base::ConfigError(
        "optim.offload keeps the optimizer's state in files that the host reads, which steps on a GPU cannot; leave it "
        "out, or set train.device to cpu");
  for (nn::Bucket& bucket : store.buckets())
    if (!bucket.params.front()->frozen) add(bucket);
  if (optimizer_->collective())
    for (const BucketState& entry : buckets_)
      all_.insert(all_.end(), entry.segments.begin(), entry.segments.end());
}

void ShardedOptimizer::add(nn::Bucket& bucket) {
  base::check(bucket.has_grad(), "the optimizer steps parameters with gradients");
  BucketState& entry = buckets_.emplace_back();
  entry.bucket = &bucket;
  entry.range = sharded_ ? sync_.shard(bucket) : layout::Range{0, bucket.size};
  const int own_shard = bucket.alone ? 0 : mesh_->dp.rank();
  const at::ScalarType wide = nn::wide_type(bucket.params.front()->spec.dtype);
  entry.values = stepped(entry);
  if (entry.values.scalar_type() != wide) entry.values = copy_of(entry.values, wide);
  if (options_.ema.decay) entry.average = copy_of(entry.values, wide);
  for (size_t i = 0; i < bucket.params.size(); ++i) {
    const nn::Param* param = bucket.params[i];
    const layout::Range held = shifted(layout::intersect(place(bucket, i), entry.range), bucket.offsets[i]);
    entry.params.push_back({param, held, optimizer_->states(param->spec), {}});
    ParamState& own = entry.params.back();
    for (const State& kind : own.kinds)
      own.tensors.push_back(zeros(kind.shape ? layout::element_count(*kind.shape) : held.size(), wide));
    const bool keeps_whole =
        std::ranges::any_of(own.kinds, [](const State& kind) { return kind.shape.has_value(); });
    // Segments end where shards do, with ZeRO 0 too: data ranks share the work of the norm, and its
    // sums do not depend on the ZeRO stage.
    const std::vector<layout::Range> shards = shards_of(bucket, i, mesh_->dp.size());
    for (int r = 0; r < static_cast<int>(shards.size()); ++r) {
      if (sharded_ && r != own_shard) continue;
      const layout::Range flat = shards[static_cast<size_t>(r)];
      // A state that every rank keeps whole moves where none of the elements are, too.
      if (flat.size() == 0 && !(keeps_whole && r == own_shard)) continue;
      const layout::Range range = shifted(flat, -bucket.offsets[i]);
      Segment segment{.param = param,
                      .flat = flat,
                      .data = entry.values.narrow(
                          0, flat.size() > 0 ? range.begin - entry.range.begin : 0, flat.size()),
                      .grad = piece(bucket, bucket.grad, bucket.grad_shard, range),
                      .state = {},
                      .weight_decay = weight_decay_of(param->spec.name, options_),
                      .lr_scale = lr_scale_of(param->spec.name, options_)};
      for (size_t s = 0; s < own.kinds.size(); ++s)
        segment.state.push_back(own.kinds[s].shape ? own.tensors[s]
                                                   : own.tensors[s].narrow(
                                                         0, flat.begin - held.begin, flat.size()));
      if (r == own_shard) {
        if (counts_for_norm(param->spec, mesh_->coord))
          counted_.push_back(segment);
        else if (param->spec.layout.tp == layout::Sbp::invariant())
          copies_.push_back(segment);
      }
      entry.segments.push_back(std::move(segment));
    }
  }
}

at::Tensor ShardedOptimizer::zeros(int64_t count, at::ScalarType type) const {
  if (!options_.offload || count == 0) return at::zeros({count}, at::TensorOptions(type).device(mesh_->device));
  auto file = std::make_shared<base::ScratchFile>(*options_.offload, count * at::elementSize(type));
  void* memory = file->bytes().data();
  return at::from_blob(memory, {count}, [file = std::move(file)](void*) {}, at::TensorOptions(type));
}

at::Tensor ShardedOptimizer::copy_of(const at::Tensor& values, at::ScalarType type) const {
  return zeros(values.numel(), type).copy_(values);
}

std::vector<Squares> ShardedOptimizer::squares(
    size_t sets, const std::function<size_t(const std::string& name)>& set_of) const {
  std::vector<Squares> sums(sets);
  for (const Segment& segment : counted_) {
    Squares& sum = sums[set_of(segment.param->spec.name)];
    const auto square = [&](const at::Tensor& values) {
      const kernels::Piece piece{.grad = values.const_data_ptr(), .count = values.numel()};
      return kernels::norm_term({&piece, 1}, values.scalar_type(), kernels::Norm::squares, mesh_->device).value;
    };
    sum.gradients += square(segment.grad);
    sum.parameters += square(segment.data);
  }
  static_assert(sizeof(Squares) == 2 * sizeof(double));
  mesh_->world.all_reduce(sums.data(), static_cast<int64_t>(2 * sets), base::DType::f64).wait();
  return sums;
}

StepReport ShardedOptimizer::step(double lr, const StepOptions& options) {
  StepReport report;
  dist::synchronize(mesh_->device);
  const auto began = std::chrono::steady_clock::now();
  sync_.finish();
  dist::synchronize(mesh_->device);
  report.wait_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  const auto norm_now = [&] {
    return total_norm(counted_, copies_, options_.clip_grad_norm_type, mesh_->world) /
           options.loss_scale;
  };
  report.grad_norm = norm_now();
  report.finite = std::isfinite(report.grad_norm);
  if (!report.finite && !options.take_not_finite) return report;
  double norm = report.grad_norm;
  if (options_.clip_grad_value) {
    const double bound = *options_.clip_grad_value * options.loss_scale;
    for (const BucketState& entry : buckets_)
      for (const Segment& segment : entry.segments) segment.grad.clamp_(-bound, bound);
    if (options_.clip_grad_max_norm) norm = norm_now();
  }
  report.clip_factor = clip_factor(norm, options_.clip_grad_max_norm);
  ++steps_;
  update(lr, report.clip_factor / options.loss_scale);
  dist::synchronize(mesh_->device);
  return report;
}

std::string ShardedOptimizer::first_not_finite() const {
  std::vector<Segment> own = counted_;
  own.insert(own.end(), copies_.begin(), copies_.end());
  return optim::first_not_finite(own, mesh_->coord.pp, mesh_->world);
}

void ShardedOptimizer::start_averages() {
  if (!options_.ema.decay) return;
  for (BucketState& entry : buckets_) entry.average.copy_(entry.values);
}

std::vector<std::string> ShardedOptimizer::state_names() const {
  std::vector<std::string> names = optimizer_->state_names();
  if (options_.ema.decay) names.push_back("ema");
  return names;
}

void ShardedOptimizer::update(double lr, double grad_scale) {
  if (optimizer_->collective()) optimizer_->step(all_, lr, steps_, grad_scale);
  std::vector<comm::Work> gathers;
  for (BucketState& entry : buckets_) {
    if (!optimizer_->collective()) optimizer_->step(entry.segments, lr, steps_, grad_scale);
    nn::Bucket& bucket = *entry.bucket;
    if (has_masters(entry)) stepped(entry).copy_(entry.values);
    if (options_.ema.decay) average(entry);
    base::check(!bucket.data_shard.defined() || !bucket.data.defined(),
                "parameters are stepped while they are gathered");
    gathers.push_back(share(entry));
  }
  for (comm::Work& gather : gathers) gather.wait();
}

comm::Work ShardedOptimizer::share(BucketState& entry) {
  const nn::Bucket& bucket = *entry.bucket;
  if (!sharded_ || bucket.alone || bucket.data_shard.defined()) return {};
  auto* flat = static_cast<std::byte*>(dist::pointer(bucket.data, mesh_->dp));
  return mesh_->dp.all_gather(flat + entry.range.begin * bucket.data.element_size(), flat,
                              layout::split_sizes(bucket.size, mesh_->dp.size()),
                              dist::dtype_of(bucket.data));
}

void ShardedOptimizer::on_averages(const std::function<void()>& work) {
  base::check(options_.ema.decay.has_value(), "there are no averages");
  std::vector<at::Tensor> weights;
  for (BucketState& entry : buckets_) {
    weights.push_back(stepped(entry).clone());
    stepped(entry).copy_(entry.average);
    share(entry).wait();
  }
  work();
  for (size_t i = 0; i < buckets_.size(); ++i) {
    stepped(buckets_[i]).copy_(weights[i]);
    share(buckets_[i]).wait();
  }
}

at::Tensor ShardedOptimizer::stepped(const BucketState& entry) {
  const nn::Bucket& bucket = *entry.bucket;
  return bucket.data_shard.defined() ? bucket.data_shard
                                     : bucket.data.narrow(0, entry.range.begin, entry.range.size());
}

bool ShardedOptimizer::has_masters(const BucketState& entry) {
  const base::DType dtype = entry.bucket->params.front()->spec.dtype;
  return dist::scalar_type(dtype) != entry.values.scalar_type();
}

void ShardedOptimizer::average(BucketState& entry) {
  const kernels::Piece piece{.param = entry.average.mutable_data_ptr(),
                             .grad = entry.values.const_data_ptr(),
                             .count = entry.values.numel()};
  kernels::average({&piece, 1}, entry.values.scalar_type(), *options_.ema.decay, mesh_->device);
}

nn::TensorPart ShardedOptimizer::part(const ParamState& own, std::string name,
                                      at::Tensor data) const {
  return {.name = std::move(name),
          .global_shape = own.param->spec.shape,
          .slice = own.param->slice,
          .flat = own.flat,
          .data = std::move(data),
          .owner = counts_for_norm(own.param->spec, mesh_->coord) &&
                   (sharded_ || own.param->spec.layout.data_rank || mesh_->dp.rank() == 0)};
}

at::Tensor ShardedOptimizer::of_param(const BucketState& entry, size_t index,
                                      const at::Tensor& flat) {
  const layout::Range held = entry.params[index].flat;
  return flat.narrow(0, entry.bucket->offsets[index] + held.begin - entry.range.begin, held.size());
}

std::vector<nn::TensorPart> ShardedOptimizer::masters() const {
  std::vector<nn::TensorPart> parts;
  for (const BucketState& entry : buckets_) {
    if (!has_masters(entry)) continue;
    for (size_t i = 0; i < entry.params.size(); ++i) {
      const ParamState& own = entry.params[i];
      if (own.flat.size() > 0)
        parts.push_back(part(own, own.param->spec.name, of_param(entry, i, entry.values)));
    }
  }
  std::ranges::sort(parts, {}, &nn::TensorPart::name);
  return parts;
}

std::vector<nn::TensorPart> ShardedOptimizer::state() const {
  std::vector<nn::TensorPart> parts;
  for (const BucketState& entry : buckets_) {
    for (size_t i = 0; i < entry.params.size(); ++i) {
      const ParamState& own = entry.params[i];
      const layout::ParamSpec& spec = own.param->spec;
      if (options_.ema.decay && own.flat.size() > 0)
        parts.push_back(part(own, spec.name + ".ema", of_param(entry, i, entry.average)));
      for (size_t s = 0; s < own.kinds.size(); ++s) {
        const std::string name = spec.name + "." + own.kinds[s].name;
        if (own.kinds[s].shape) {
          layout::ParamSpec whole{.name = name, .shape = *own.kinds[s].shape};
          whole.layout.stages = spec.layout.stages;
          whole.layout.data_rank = spec.layout.data_rank;
          parts.push_back({.name = name,
                           .global_shape = whole.shape,
                           .slice = layout::whole(whole.shape),
                           .flat = {0, own.tensors[s].numel()},
                           .data = own.tensors[s],
                           .owner = layout::is_owner(whole, mesh_->coord)});
        } else if (own.flat.size() > 0) {
          parts.push_back(part(own, name, own.tensors[s]));
        }
      }
    }
  }
  std::ranges::sort(parts, {}, &nn::TensorPart::name);
  return parts;
}

}  // namespace trireme::optim
