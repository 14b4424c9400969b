#pragma once
// World: one rank's view of the job. A rank is an object, so a test runs N ranks as N threads of one process.
// DeviceMesh: the mesh together with this rank's communicators along its axes.
//
//   run_ranks(8, [](World& world) { DeviceMesh mesh(world, Mesh({.pp = 2, .dp = 2, .tp = 2})); ... });

#include <c10/core/Device.h>

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "trireme/comm/comm.h"
#include "trireme/layout/mesh.h"

namespace trireme::dist {

class World {
 public:
  /// One rank that is alone.
  static World single(c10::Device device = c10::kCPU);
  /// The rank behind `backend` (null: it is alone) on the device that `device` gives it (device.h), connected for the
  /// memory of GPUs where it has one. Collective. ConfigError.
  static World on_device(std::unique_ptr<comm::Backend> backend, const std::string& device,
                         std::chrono::milliseconds timeout);
  /// `device` is where the rank's tensors live (device.h); several ranks with devices need a backend that takes their
  /// memory.
  explicit World(std::unique_ptr<comm::Backend> backend, c10::Device device = c10::kCPU);

  int rank() const;
  int size() const;
  /// The number of the host that a rank runs on.
  int host(int rank) const;
  c10::Device device() const { return device_; }
  /// Collective over `ranks` (world ranks in group order, this rank among them). A group of one needs no call.
  comm::Comm comm(std::span<const int> ranks, const std::string& name);
  /// Stops the peers within a second with this rank and `why` in their error.
  void abort(const std::string& why);

 private:
  std::unique_ptr<comm::Backend> backend_;
  c10::Device device_;
};

/// Sets this thread's intra-op threads; first thing in each rank thread (see docs/libtorch-notes.md).
void set_rank_threads(int threads);

/// Runs `body` as `ranks` ranks on threads of this process; a failing rank aborts the others; rethrows the first
/// failure. `threads` are the intra-op threads of each rank; `device` is that of open_device.
void run_ranks(int ranks, const std::function<void(World&)>& body, int threads = 1,
               std::chrono::milliseconds timeout = std::chrono::seconds(60), const std::string& device = "cpu");

/// What is unfortunate about where the mesh's ranks run: tensor-parallel groups that span hosts, since their every layer
/// communicates. Empty where nothing is.
std::string placement_warning(const layout::Mesh& mesh, const World& world);

struct DeviceMesh {
  layout::Mesh mesh;
  layout::Coord coord;
  comm::Comm world, pp, dp, tp;
  c10::Device device = c10::kCPU;  // this rank's

  /// Every axis of size 1.
  DeviceMesh() = default;
  /// Collective over the world; ConfigError when the mesh's size is not the world's.
  DeviceMesh(World& world, const layout::Mesh& mesh);
  const comm::Comm& along(layout::Axis axis) const;
};

}  // namespace trireme::dist
