#include "trireme/optim/grad_sync.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "trireme/base/error.h"
#include "trireme/dist/redistribute.h"

namespace trireme::optim {

using layout::Axis;

GradSync::GradSync(dist::World& world, const dist::DeviceMesh& mesh, nn::ParamStore& store,
                   int zero_stage)
    : mesh_(&mesh), store_(&store), scatter_(zero_stage >= 1) {
  if (zero_stage < 0 || zero_stage > 1)
    throw base::ConfigError(
        fmt::format("zero_optimization.stage {} is not available; use 0 or 1", zero_stage));
  // Ranks that share several groups must make them in one order: by stages, then by axis.
  std::map<std::pair<std::vector<int>, bool>, comm::Comm> groups;
  for (const nn::Bucket& bucket : store.buckets()) {
    if (!bucket.grad.defined()) continue;  // frozen
    for (const nn::Param* param : bucket.params)
      base::check(!param->spec.layout.dp.is_split(),
                  "{} is split over data ranks, which has no gradient exchange yet",
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
    if (bucket.grad.defined())
      exchanges_.push_back({.bucket = &bucket,
                            .first = groups.at({bucket.stages, bucket.replicated_on_tp}),
                            .work = {}});
}

layout::Range GradSync::shard(const nn::Bucket& bucket) const {
  return layout::split_range(bucket.grad.numel(), mesh_->dp.size(), mesh_->dp.rank());
}

void GradSync::begin() {
  next_ = 0;
  finished_ = false;
}

void GradSync::start(Exchange& exchange) {
  // Without a contribution the memory holds the last step's gradient.
  for (nn::Param* param : exchange.bucket->params)
    if (param->contributions == 0) param->grad.zero_();
  exchange.first.size() > 1 ? start_first(exchange) : start_data(exchange);
}

void GradSync::start_first(Exchange& exchange) {
  at::Tensor& grad = exchange.bucket->grad;
  exchange.work =
      exchange.first.all_reduce(grad.mutable_data_ptr(), grad.numel(), dist::dtype_of(grad));
  exchange.phase = Phase::first_sum;
}

void GradSync::start_data(Exchange& exchange) {
  at::Tensor& grad = exchange.bucket->grad;
  const comm::Comm& dp = mesh_->dp;
  if (scatter_) {
    auto* flat = static_cast<std::byte*>(grad.mutable_data_ptr());
    const auto counts = layout::split_sizes(grad.numel(), dp.size());
    exchange.work =
        dp.reduce_scatter(flat, flat + shard(*exchange.bucket).begin * grad.element_size(), counts,
                          dist::dtype_of(grad));
  } else {
    exchange.work = dp.all_reduce(grad.mutable_data_ptr(), grad.numel(), dist::dtype_of(grad));
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
  for (; next_ < exchanges_.size(); ++next_) {
    Exchange& exchange = exchanges_[next_];
    if (!tied(exchange)) start(exchange);
  }
  // The holders of a tie complete buckets in different orders; here all of them agree on one.
  std::vector<Exchange*> ties;
  for (Exchange& exchange : exchanges_)
    if (tied(exchange)) ties.push_back(&exchange);
  std::ranges::sort(ties, {}, [](const Exchange* e) {
    return std::pair(e->bucket->stages, e->bucket->params.front()->spec.name);
  });
  for (Exchange* exchange : ties) start(*exchange);
  for (Exchange& exchange : exchanges_) {
    if (exchange.phase == Phase::data_sum) continue;
    exchange.work.wait();
    start_data(exchange);
  }
  for (Exchange& exchange : exchanges_) exchange.work.wait();
}

void GradSync::gather() {
  if (!scatter_) return;
  for (Exchange& exchange : exchanges_) {
    at::Tensor& grad = exchange.bucket->grad;
    auto* flat = static_cast<std::byte*>(grad.mutable_data_ptr());
    mesh_->dp
        .all_gather(flat + shard(*exchange.bucket).begin * grad.element_size(), flat,
                    layout::split_sizes(grad.numel(), mesh_->dp.size()), dist::dtype_of(grad))
        .wait();
  }
}

}  // namespace trireme::optim
