#include "trireme/optim/whole_tensors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/dist/device.h"
#include "trireme/dist/redistribute.h"

namespace trireme::optim {
namespace {

const std::string& name_of(const WholeTensors::Place& place) {
  return place.param->spec.name;
}

// Copies a slice's runs: from the whole tensor to the local slice, or back. Both lie on the host.
void copy_runs(const layout::Slice& slice, const layout::Shape& shape, const at::Tensor& whole,
               const at::Tensor& local, bool to_local) {
  auto* global_bytes = static_cast<std::byte*>(whole.mutable_data_ptr());
  auto* local_bytes = static_cast<std::byte*>(local.mutable_data_ptr());
  const auto size = static_cast<int64_t>(whole.element_size());
  layout::for_each_run(slice, shape, [&](layout::Run run) {
    std::byte* there = global_bytes + run.global * size;
    std::byte* here = local_bytes + run.local * size;
    to_local ? std::memcpy(here, there, static_cast<size_t>(run.count * size))
             : std::memcpy(there, here, static_cast<size_t>(run.count * size));
  });
}

}  // namespace

WholeTensors::WholeTensors(const dist::DeviceMesh& mesh, std::vector<Place> places)
    : mesh_(&mesh), places_(std::move(places)) {
  std::ranges::sort(places_, {}, name_of);
}

size_t WholeTensors::index(const nn::Param* param) const {
  const auto found = std::ranges::lower_bound(places_, param->spec.name, {}, name_of);
  base::check(found != places_.end() && found->param == param, "{} is not among the tensors",
              param->spec.name);
  return static_cast<size_t>(found - places_.begin());
}

bool WholeTensors::sharded() const {
  return !places_.empty() && places_.front().shards.size() > 1;
}

void WholeTensors::sum(std::vector<std::vector<double>>& numbers) const {
  base::check(numbers.size() == places_.size(), "{} lists of numbers for {} parameters",
              numbers.size(), places_.size());
  if (places_.empty()) return;
  std::vector<double> flat;
  for (const std::vector<double>& list : numbers) flat.insert(flat.end(), list.begin(), list.end());
  const auto reduce = [&](const comm::Comm& comm) {
    comm.all_reduce(flat.data(), static_cast<int64_t>(flat.size()), base::DType::f64).wait();
  };
  if (sharded()) reduce(mesh_->dp);
  if (mesh_->tp.size() > 1) {
    // Every tensor rank has the whole of what is not split: the first one's counts.
    size_t at = 0;
    for (size_t i = 0; i < numbers.size(); at += numbers[i++].size())
      if (!places_[i].param->spec.layout.tp.is_split() && mesh_->tp.rank() != 0)
        std::fill_n(flat.begin() + static_cast<std::ptrdiff_t>(at), numbers[i].size(), 0.0);
    reduce(mesh_->tp);
  }
  auto from = flat.cbegin();
  for (std::vector<double>& list : numbers) {
    const auto to = from + static_cast<std::ptrdiff_t>(list.size());
    std::copy(from, to, list.begin());
    from = to;
  }
}

at::Tensor WholeTensors::gather(size_t index, at::Tensor local) const {
  const Place& place = places_[index];
  const layout::ParamSpec& spec = place.param->spec;
  const base::DType dtype = dist::dtype_of(local);
  const auto size = static_cast<int64_t>(local.element_size());
  if (sharded()) {
    std::vector<int64_t> counts;
    for (const layout::Range& shard : place.shards) counts.push_back(shard.size());
    auto* bytes = static_cast<std::byte*>(dist::pointer(local, mesh_->dp));
    const auto own = static_cast<size_t>(mesh_->dp.rank());
    mesh_->dp.all_gather(bytes + place.shards[own].begin * size, bytes, counts, dtype).wait();
  }
  if (!spec.layout.tp.is_split() || mesh_->tp.size() == 1) return local.view(spec.shape);
  std::vector<layout::Slice> slices;
  std::vector<int64_t> counts;
  for (int t = 0; t < mesh_->tp.size(); ++t) {
    layout::Coord coord = mesh_->coord;
    coord.tp = t;
    slices.push_back(layout::local_slice(spec, mesh_->mesh, coord));
    counts.push_back(slices.back().count());
  }
  at::Tensor packed = at::empty({layout::element_count(spec.shape)}, local.options());
  mesh_->tp.all_gather(dist::pointer(local, mesh_->tp), dist::pointer(packed, mesh_->tp), counts, dtype).wait();
  packed = dist::to_host(packed);
  at::Tensor whole = at::empty(spec.shape, packed.options());
  int64_t begin = 0;
  for (size_t t = 0; t < slices.size(); begin += counts[t++])
    copy_runs(slices[t], spec.shape, whole, packed.narrow(0, begin, counts[t]), false);
  return dist::to_device(whole, local.device());
}

at::Tensor WholeTensors::local_slice(size_t index, const at::Tensor& whole) const {
  const nn::Param* param = places_[index].param;
  at::Tensor local = at::empty({param->slice.count()}, whole.scalar_type());
  copy_runs(param->slice, param->spec.shape, dist::to_host(whole), local, true);
  return dist::to_device(local, whole.device());
}

}  // namespace trireme::optim
