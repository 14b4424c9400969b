#include "tools/trireme/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <set>

#include "trireme/base/error.h"
#include "trireme/dist/rendezvous.h"
#include "trireme/dist/world.h"

namespace trireme::tools {
namespace {

using comm::Comm, comm::DType;
using layout::Axis;

/// Runs an operation, which throws where a result is wrong, and yields its seconds.
double seconds_of(const Comm& comm, int64_t bytes, const std::function<void()>& operation) {
  using Clock = std::chrono::steady_clock;
  auto seconds_since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  auto start = Clock::now();
  operation();
  double seconds = seconds_since(start);
  // What fits into a tenth of a second. On a busy host the first, slow time stands: rather that than a long wait.
  auto times = static_cast<int64_t>(std::min(0.1 / seconds, bytes > (1 << 20) ? 5.0 : 50.0));
  comm.broadcast(&times, 1, DType::i64, 0).wait();
  comm.barrier();
  if (times == 0) return seconds;
  start = Clock::now();
  for (int64_t i = 0; i < times; ++i) operation();
  return seconds_since(start) / static_cast<double>(times);
}

/// The rows of one group's table. Returns the seconds of the smallest all-reduce and of the largest.
std::pair<double, double> check_group(const Comm& comm, bool print, int64_t largest) {
  const int ranks = comm.size(), me = comm.rank();
  std::pair<double, double> all_reduces;
  for (int64_t asked : {int64_t{64}, int64_t{1} << 10, int64_t{1} << 20, largest}) {
    const int64_t each = std::max<int64_t>(1, asked / 4 / ranks), count = each * ranks, bytes = count * 4;
    std::vector<float> in(count), out(count);
    std::vector<int64_t> counts(ranks, each);
    auto measure = [&](const char* name, const std::function<bool()>& right) {
      double seconds = seconds_of(comm, bytes, [&] {
        if (!right())
          throw base::InternalError(fmt::format("{} of {} bytes on the ranks {} gives a wrong result", name, bytes,
                                                fmt::join(comm.ranks(), " ")));
      });
      if (print)
        fmt::print("{:<16}{:>12}{:>14.1f}{:>10.2f}\n", name, bytes, seconds * 1e6,
                   static_cast<double>(bytes) / seconds * 1e-9);
      return seconds;
    };
    double all_reduce = measure("all_reduce", [&] {
      std::fill(in.begin(), in.end(), static_cast<float>(me));
      comm.all_reduce(in.data(), count, DType::f32).wait();
      return in.back() == static_cast<float>(ranks * (ranks - 1) / 2);
    });
    if (asked == 64) all_reduces.first = all_reduce;
    all_reduces.second = all_reduce;
    measure("reduce_scatter", [&] {
      std::fill(in.begin(), in.end(), 1.0f);
      comm.reduce_scatter(in.data(), out.data(), counts, DType::f32).wait();
      return out[each - 1] == static_cast<float>(ranks);
    });
    std::fill(in.begin(), in.end(), static_cast<float>(me));
    measure("all_gather", [&] {
      comm.all_gather(in.data(), out.data(), counts, DType::f32).wait();
      return out.front() == 0 && out.back() == static_cast<float>(ranks - 1);
    });
    measure("all_to_all", [&] {
      comm.all_to_all(in.data(), counts, out.data(), counts, DType::f32).wait();
      return out.front() == 0 && out.back() == static_cast<float>(ranks - 1);
    });
    measure("broadcast", [&] {
      out.back() = static_cast<float>(me);
      comm.broadcast(out.data(), count, DType::f32, ranks - 1).wait();
      return out.back() == static_cast<float>(ranks - 1);
    });
    measure("send, receive", [&] {
      comm::Work sent = comm.isend(in.data(), bytes, (me + 1) % ranks, 0);
      comm.irecv(out.data(), bytes, (me + ranks - 1) % ranks, 0).wait();
      sent.wait();
      return out.back() == static_cast<float>((me + ranks - 1) % ranks);
    });
  }
  return all_reduces;
}

}  // namespace

void check_communication(const CheckOptions& options) {
  dist::World world(dist::rendezvous_from_env(std::chrono::seconds(60)));
  const int inner = options.tensor_parallel * options.pipeline_parallel;
  if (world.size() % inner != 0)
    throw base::ConfigError(fmt::format("--tensor-parallel {} x --pipeline-parallel {} does not divide the {} ranks",
                                        options.tensor_parallel, options.pipeline_parallel, world.size()));
  const layout::Mesh shape({.pp = options.pipeline_parallel, .dp = world.size() / inner, .tp = options.tensor_parallel});
  dist::DeviceMesh mesh(world, shape);
  const bool print = world.rank() == 0;
  auto hosts_of = [&](const Comm& comm) {
    std::set<int> hosts;
    for (int rank : comm.ranks()) hosts.insert(world.host(rank));
    return hosts.size();
  };
  if (world.size() == 1) {
    fmt::print("1 ranks: nothing to check\n");
    return;
  }
  std::string summary;
  auto check = [&](const char* name, const Comm& comm) {
    // All groups of an axis at once, as in training.
    mesh.world.barrier();
    const size_t hosts = hosts_of(comm);
    if (print)
      fmt::print("{}{}: {} ranks on {} host{}\n{:<16}{:>12}{:>14}{:>10}\n", summary.empty() ? "" : "\n", name,
                 comm.size(), hosts, hosts == 1 ? "" : "s", "operation", "bytes", "microseconds", "GB/s");
    constexpr int64_t kLargest = 16 << 20;
    auto [small, large] = check_group(comm, print, kLargest);
    summary += fmt::format("{:<6}{} ranks, {} host{}: latency {:.1f} microseconds, bandwidth {:.2f} GB/s (all_reduce)\n",
                           name, comm.size(), hosts, hosts == 1 ? "" : "s", small * 1e6,
                           static_cast<double>(kLargest) / large * 1e-9);
  };
  check("world", mesh.world);
  for (Axis axis : {Axis::pp, Axis::dp, Axis::tp})
    if (const Comm& comm = mesh.along(axis); comm.size() > 1 && comm.size() < world.size())
      check(std::string(layout::name_of(axis)).c_str(), comm);
  if (print) fmt::print("\n{}", summary);
  if (std::string warning = dist::placement_warning(shape, world); print && !warning.empty())
    fmt::print(stderr, "trireme: warning: {}\n", warning);
}

}  // namespace trireme::tools
