#include "trireme/optim/param_gather.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "trireme/dist/device.h"
#include "trireme/dist/redistribute.h"

namespace trireme::optim {

ParamGather::ParamGather(const dist::DeviceMesh& mesh, nn::ParamStore& store)
    : mesh_(&mesh), store_(&store) {}

void ParamGather::before_layer(int layer, pipeline::Pass pass) {
  if (!store_->sharding().parameters) return;
  const int next = pass == pipeline::Pass::forward ? layer + 1 : layer - 1;
  const auto now = store_->buckets_of(layer), soon = store_->buckets_of(next);
  const auto among = [](const auto& list, const nn::Bucket& bucket) {
    return std::ranges::find(list, &bucket) != list.end();
  };
  // First of all room is made.
  for (nn::Bucket& bucket : store_->buckets())
    if (!among(now, bucket) && !among(soon, bucket)) free(bucket);
  for (nn::Bucket* bucket : now) start(*bucket);
  for (nn::Bucket* bucket : soon) start(*bucket);
  for (nn::Bucket* bucket : now) finish(*bucket);
}

void ParamGather::end_step() {
  if (!store_->sharding().parameters) return;
  for (nn::Bucket& bucket : store_->buckets()) free(bucket);
}

void ParamGather::gather_all() {
  if (!store_->sharding().parameters) return;
  for (nn::Bucket& bucket : store_->buckets()) start(bucket);
  for (nn::Bucket& bucket : store_->buckets()) finish(bucket);
}

void ParamGather::start(nn::Bucket& bucket) {
  if (bucket.data.defined() || flights_.contains(&bucket)) return;
  const at::Tensor& shard = bucket.data_shard;
  Flight& flight = flights_[&bucket];
  flight.whole = at::empty({bucket.size}, shard.options());
  flight.work = mesh_->dp.all_gather(dist::pointer(shard, mesh_->dp), dist::pointer(flight.whole, mesh_->dp),
                                     layout::split_sizes(bucket.size, mesh_->dp.size()),
                                     dist::dtype_of(shard));
}

void ParamGather::finish(nn::Bucket& bucket) {
  const auto flight = flights_.find(&bucket);
  if (flight == flights_.end()) return;
  flight->second.work.wait();
  bucket.set_data(std::move(flight->second.whole));
  flights_.erase(flight);
}

void ParamGather::free(nn::Bucket& bucket) {
  finish(bucket);
  if (bucket.data_shard.defined() && bucket.data.defined()) bucket.set_data({});
}

}  // namespace trireme::optim
