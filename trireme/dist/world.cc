#include "trireme/dist/world.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/comm/backends/nccl.h"
#include "trireme/comm/backends/threads.h"
#include "trireme/dist/device.h"

namespace trireme::dist {

using layout::Axis;

World World::single(c10::Device device) { return World(nullptr, device); }

World World::on_device(std::unique_ptr<comm::Backend> backend, const std::string& name,
                       std::chrono::milliseconds timeout) {
  if (name == "cpu") return World(std::move(backend));
  int index = 0, here = 1;  // among the ranks of this host, and their number
  if (backend) {
    here = 0;
    for (int r = 0; r < backend->size(); ++r)
      if (backend->host(r) == backend->host(backend->rank())) index += r < backend->rank(), ++here;
  }
  const c10::Device device = open_device(name, index, here);
  if (backend && backend->size() > 1) backend = comm::make_nccl_backend(std::move(backend), device.index(), timeout);
  return World(std::move(backend), device);
}

World::World(std::unique_ptr<comm::Backend> backend, c10::Device device)
    : backend_(std::move(backend)), device_(device) {}

int World::rank() const { return backend_ ? backend_->rank() : 0; }
int World::size() const { return backend_ ? backend_->size() : 1; }

int World::host(int rank) const { return backend_ ? backend_->host(rank) : 0; }

comm::Comm World::comm(std::span<const int> ranks, const std::string& name) {
  if (ranks.size() == 1) return comm::Comm();
  base::check(backend_ != nullptr, "group '{}' of {} ranks in a world of one", name, ranks.size());
  return backend_->make({ranks.begin(), ranks.end()}, name);
}

void World::abort(const std::string& why) {
  if (backend_) backend_->abort(why);
}

void set_rank_threads(int threads) {
  at::get_num_threads();                  // LibTorch's own lazy initialisation of this thread ...
  at::internal::lazy_init_num_threads();  // ... and this binary's copy of it, before the setting holds
  at::set_num_threads(threads);
}

void run_ranks(int ranks, const std::function<void(World&)>& body, int threads, std::chrono::milliseconds timeout,
               const std::string& device) {
  auto backends = comm::make_thread_backends(ranks, timeout);
  std::mutex mutex;
  std::exception_ptr first, loss;  // loss: of a peer, told by the others and perhaps before the peer tells why
  std::vector<std::thread> rank_threads;
  for (auto& backend : backends) {
    rank_threads.emplace_back([&, backend = std::move(backend)]() mutable {
      set_rank_threads(threads);
      std::optional<World> world;
      auto fail = [&](std::exception_ptr& place, const char* why) {
        {
          std::lock_guard lock(mutex);
          if (!place) place = std::current_exception();
        }
        if (world) world->abort(why);
      };
      try {
        world.emplace(World::on_device(std::move(backend), device, timeout));
        body(*world);
      } catch (const base::CommError& e) {
        fail(loss, e.what());
      } catch (const std::exception& e) {
        fail(first, e.what());
      } catch (...) {
        fail(first, "unknown exception");
      }
    });
  }
  for (std::thread& thread : rank_threads) thread.join();
  if (first || loss) std::rethrow_exception(first ? first : loss);
}

std::string placement_warning(const layout::Mesh& mesh, const World& world) {
  for (const std::vector<int>& group : mesh.groups(Axis::tp)) {
    auto elsewhere = std::find_if(group.begin(), group.end(),
                                  [&](int rank) { return world.host(rank) != world.host(group.front()); });
    if (elsewhere == group.end()) continue;
    return fmt::format(
        "the tensor-parallel ranks {} are on several hosts (rank {} is on another than rank {}); every layer then waits "
        "for the network. Let tensor_parallel_size {} divide the ranks of a host, and number the ranks host by host "
        "(srun --distribution=block, mpirun --map-by slot)",
        fmt::join(group, " "), *elsewhere, group.front(), mesh.size(Axis::tp));
  }
  return "";
}

DeviceMesh::DeviceMesh(World& rank, const layout::Mesh& shape) : mesh(shape) {
  if (mesh.size() != rank.size()) {
    throw base::ConfigError(fmt::format(
        "the layout pipeline {} x data {} x tensor {} needs {} ranks, but the job has {}; change a size or the "
        "number of ranks",
        mesh.size(Axis::pp), mesh.size(Axis::dp), mesh.size(Axis::tp), mesh.size(), rank.size()));
  }
  coord = mesh.coord(rank.rank());
  device = rank.device();
  std::vector<int> all(rank.size());
  for (int r = 0; r < rank.size(); ++r) all[r] = r;
  world = rank.comm(all, "world");
  auto make = [&](Axis axis) {
    std::vector<int> ranks = mesh.ranks_along(axis, coord);
    return rank.comm(ranks, fmt::format("{} of rank {}", layout::name_of(axis), ranks.front()));
  };
  pp = make(Axis::pp);
  dp = make(Axis::dp);
  tp = make(Axis::tp);
}

const comm::Comm& DeviceMesh::along(Axis axis) const { return axis == Axis::pp ? pp : axis == Axis::dp ? dp : tp; }

}  // namespace trireme::dist
