#include "trireme/optim/grad_sync.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "trireme/base/error.h"
#include "trireme/dist/device.h"
#include "trireme/dist/redistribute.h"

namespace trireme::optim {

using layout::Axis;

GradSync::GradSync(dist::World& world, const dist::DeviceMesh& mesh, nn::ParamStore& store,
                   int zero_stage, std::optional<base::DType> travel)
    : mesh_(&mesh),
      store_(&store),
      scatter_(zero_stage >= 1),
      sharded_(zero_stage >= 2 && mesh.dp.size() > 1),
      travel_(travel) {
  if (zero_stage < 0 || zero_stage > 3)
    throw base::ConfigError(
        fmt::format("train.zero_optimization.stage {}: use 0, 1, 2 or 3", zero_stage));
  base::check(store.sharding().gradients == sharded_,
              "the store was materialized for another ZeRO stage than {}", zero_stage);
  // Ranks that share several groups must make them in one order: by stages, then by axis.
  std::map<std::pair<std::vector<int>, bool>, comm::Comm> groups;
  for (const nn::Bucket& bucket : store.buckets()) {
    if (!bucket.has_grad()) continue;  // frozen
    for (const nn::Param* param : bucket.params)
      base::check(!param->spec.layout.dp.is_split(),
                  "{} is split over data ranks, for which there is no gradient exchange",
                  param->spec.name);
    groups.try_emplace({bucket.stages, bucket.replicated_on_tp});
  }
  for (auto& [key, group] : groups) {
    const auto& [stages, over_tp] = key;
    std::vector<int> ranks;
    for (int stage : stages)
      for (int t = 0; t < (over_tp ? mesh.mesh.size(Axis::tp) : 1); ++t)
        ranks.push_back(
            mesh.mesh.rank({.pp = stage, .dp = mesh.coord.dp, .tp = over_tp ? t : mesh.coord.tp}));
    if (stages.size() == 1 && over_tp)
      group = mesh.tp;
    else
      group =
          world.comm(ranks, fmt::format("tie of stages {}{} of rank {}", fmt::join(stages, ", "),
                                        over_tp ? " and tensor ranks" : "", ranks.front()));
  }
  for (nn::Bucket& bucket : store.buckets())
    if (bucket.has_grad())
      (bucket.alone ? alone_ : exchanges_)
          .push_back({.bucket = &bucket,
                      .first = groups.at({bucket.stages, bucket.replicated_on_tp}),
                      .work = {}});
}

layout::Range GradSync::shard(const nn::Bucket& bucket) const {
  if (bucket.alone) return {0, bucket.size};
  return layout::split_range(bucket.size, mesh_->dp.size(), mesh_->dp.rank());
}

std::vector<GradSync::Exchange*> GradSync::ties() {
  std::vector<Exchange*> found;
  for (Exchange& exchange : exchanges_)
    if (tied(exchange)) found.push_back(&exchange);
  std::ranges::sort(found, {}, [](const Exchange* e) {
    return std::pair(e->bucket->stages, e->bucket->params.front()->spec.name);
  });
  return found;
}

void GradSync::begin() {
  next_ = 0;
  finished_ = false;
  for (Exchange& exchange : exchanges_) {
    exchange.scattered = false;
    if (sharded_) exchange.bucket->set_grad({});  // what gather() made
  }
}

void GradSync::before(int layer) {
  if (!sharded_) return;
  for (nn::Bucket* bucket : store_->buckets_of(layer))
    if (bucket->has_grad() && !bucket->alone)
      bucket->set_grad(
          dist::shared_empty(mesh_->dp, bucket->size, bucket->grad_shard.scalar_type(), mesh_->device));
}

void GradSync::after(int layer) {
  if (!sharded_) return landed();
  take_scattered();
  for (Exchange& exchange : exchanges_)
    if (std::ranges::find(exchange.bucket->layers, layer) != exchange.bucket->layers.end())
      scatter(exchange);
}

void GradSync::scatter(Exchange& exchange) {
  nn::Bucket& bucket = *exchange.bucket;
  for (nn::Param* param : bucket.params)
    if (!param->grad_begun) param->grad.zero_();
  Scatter& scatter = scatters_.emplace_back(
      Scatter{&exchange, travelling(bucket.grad), {}, {}, !exchange.scattered});
  const bool in_place = scatter.first && scatter.whole.is_same(bucket.grad);
  scatter.sum =
      in_place ? bucket.grad_shard : at::empty({bucket.shard.size()}, scatter.whole.options());
  exchange.scattered = true;
  scatter.work = mesh_->dp.reduce_scatter(dist::pointer(scatter.whole, mesh_->dp),
                                          dist::pointer(scatter.sum, mesh_->dp),
                                          layout::split_sizes(bucket.size, mesh_->dp.size()),
                                          dist::dtype_of(scatter.whole));
  bucket.set_grad({});
}

void GradSync::take_scattered() {
  for (; !scatters_.empty(); scatters_.pop_front()) {
    Scatter& scatter = scatters_.front();
    scatter.work.wait();
    at::Tensor& shard = scatter.exchange->bucket->grad_shard;
    if (scatter.sum.is_same(shard)) continue;
    scatter.first ? shard.copy_(scatter.sum) : shard.add_(scatter.sum);
  }
}

void GradSync::start(Exchange& exchange) {
  // Without a contribution the memory holds the last step's gradient.
  for (nn::Param* param : exchange.bucket->params)
    if (!param->grad_begun) param->grad.zero_();
  exchange.first.size() > 1 ? start_first(exchange, exchange.bucket->grad) : start_data(exchange);
}

void GradSync::start_first(Exchange& exchange, at::Tensor& grad) {
  exchange.work =
      exchange.first.all_reduce(dist::pointer(grad, exchange.first), grad.numel(), dist::dtype_of(grad));
  exchange.phase = Phase::first_sum;
}

at::Tensor GradSync::travelling(const at::Tensor& grad) const {
  if (!travel_ || mesh_->dp.size() == 1) return grad;
  return dist::shared_empty(mesh_->dp, grad.numel(), dist::scalar_type(*travel_), mesh_->device).copy_(grad);
}

void GradSync::start_data(Exchange& exchange) {
  at::Tensor grad = exchange.sent = travelling(exchange.bucket->grad);
  const comm::Comm& dp = mesh_->dp;
  if (scatter_) {
    auto* flat = static_cast<std::byte*>(dist::pointer(grad, dp));
    const auto counts = layout::split_sizes(grad.numel(), dp.size());
    exchange.work =
        dp.reduce_scatter(flat, flat + shard(*exchange.bucket).begin * grad.element_size(), counts,
                          dist::dtype_of(grad));
  } else {
    exchange.work = dp.all_reduce(dist::pointer(grad, dp), grad.numel(), dist::dtype_of(grad));
  }
  exchange.phase = Phase::data_sum;
}

void GradSync::landed() {
  for (; next_ < exchanges_.size(); ++next_) {
    Exchange& exchange = exchanges_[next_];
    if (tied(exchange)) continue;
    if (!store_->complete(*exchange.bucket)) return;
    start(exchange);
  }
}

void GradSync::finish() {
  base::check(!finished_, "gradients are summed once a step; begin() starts the next");
  finished_ = true;
  start_alone();
  if (sharded_) return finish_shards();
  for (; next_ < exchanges_.size(); ++next_) {
    Exchange& exchange = exchanges_[next_];
    if (!tied(exchange)) start(exchange);
  }
  // The holders of a tie complete buckets in different orders; here all of them agree on one.
  for (Exchange* exchange : ties()) start(*exchange);
  for (Exchange& exchange : exchanges_) {
    if (exchange.phase == Phase::data_sum) continue;
    exchange.work.wait();
    start_data(exchange);
  }
  for (Exchange& exchange : exchanges_) {
    exchange.work.wait();
    const at::Tensor sent = std::exchange(exchange.sent, {});
    at::Tensor& grad = exchange.bucket->grad;
    if (sent.is_same(grad)) continue;
    const layout::Range summed =
        scatter_ ? shard(*exchange.bucket) : layout::Range{0, grad.numel()};
    grad.narrow(0, summed.begin, summed.size())
        .copy_(sent.narrow(0, summed.begin, summed.size()));
  }
  for (Exchange& exchange : alone_) exchange.work.wait();
}

void GradSync::start_alone() {
  for (Exchange& exchange : alone_) {
    for (nn::Param* param : exchange.bucket->params)
      if (!param->grad_begun) param->grad.zero_();
    if (exchange.first.size() > 1) start_first(exchange, exchange.bucket->grad);
  }
}

void GradSync::finish_shards() {
  take_scattered();
  const auto sum = [&](Exchange& exchange) {
    at::Tensor& shard = exchange.bucket->grad_shard;
    if (!exchange.scattered) shard.zero_();
    if (exchange.first.size() > 1) start_first(exchange, shard);
  };
  for (Exchange& exchange : exchanges_)
    if (!tied(exchange)) sum(exchange);
  for (Exchange* exchange : ties()) sum(*exchange);
  for (Exchange& exchange : exchanges_) exchange.work.wait();
  for (Exchange& exchange : alone_) exchange.work.wait();
}

void GradSync::gather() {
  if (!scatter_) return;
  for (Exchange& exchange : exchanges_) {
    nn::Bucket& bucket = *exchange.bucket;
    if (sharded_)
      bucket.set_grad(
          dist::shared_empty(mesh_->dp, bucket.size, bucket.grad_shard.scalar_type(), mesh_->device));
    auto* flat = static_cast<std::byte*>(dist::pointer(bucket.grad, mesh_->dp));
    const void* own = sharded_ ? bucket.grad_shard.const_data_ptr()
                               : flat + shard(bucket).begin * bucket.grad.element_size();
    mesh_->dp
        .all_gather(own, flat, layout::split_sizes(bucket.size, mesh_->dp.size()),
                    dist::dtype_of(bucket.grad))
        .wait();
  }
}

}  // namespace trireme::optim
