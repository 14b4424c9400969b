// trireme launch: ranks on this host with torchrun's variables; `--check` tries their
// communication.

#include "trireme/comm/launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>

#include "tools/trireme/subcommands.h"
#include "trireme/base/error.h"
#include "trireme/dist/rendezvous.h"

namespace trireme::tools {

namespace {

struct Options {
  comm::LaunchOptions launch;
  std::vector<std::string> command;
  bool no_prefix = false, check = false, check_rank = false;
};

using comm::Comm, comm::DType;

/// One row of the table: runs the operation, which throws where a result is wrong, and prints its
/// time.
void measure(const Comm& comm, const char* name, int64_t bytes,
             const std::function<void()>& operation) {
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
  if (times > 0) {
    start = Clock::now();
    for (int64_t i = 0; i < times; ++i) operation();
    seconds = seconds_since(start) / static_cast<double>(times);
  }
  if (comm.rank() == 0)
    fmt::print("{:<16}{:>12}{:>14.1f}{:>10.2f}\n", name, bytes, seconds * 1e6,
               static_cast<double>(bytes) / seconds * 1e-9);
}

/// Runs in each rank of `trireme launch --check`.
void check_communication() {
  auto backend = dist::rendezvous_from_env(std::chrono::seconds(60));
  std::vector<int> all(backend->size());
  for (int r = 0; r < backend->size(); ++r) all[r] = r;
  Comm comm = backend->make(all, "check");
  const int ranks = comm.size(), me = comm.rank();
  auto expect = [&](bool right, const char* name) {
    if (!right)
      throw base::InternalError(fmt::format("{} on {} ranks gives a wrong result", name, ranks));
  };
  if (me == 0)
    fmt::print("{} ranks\n{:<16}{:>12}{:>14}{:>10}\n", ranks, "operation", "bytes", "microseconds",
               "GB/s");
  for (int64_t bytes : {1 << 10, 1 << 20, 16 << 20}) {
    const int64_t each = bytes / 4 / ranks, count = each * ranks;
    std::vector<float> in(count), out(count);
    std::vector<int64_t> counts(ranks, each);
    measure(comm, "all_reduce", bytes, [&] {
      std::fill(in.begin(), in.end(), static_cast<float>(me));
      comm.all_reduce(in.data(), count, DType::f32).wait();
      expect(in.back() == static_cast<float>(ranks * (ranks - 1) / 2), "all_reduce");
    });
    measure(comm, "reduce_scatter", bytes, [&] {
      std::fill(in.begin(), in.end(), 1.0f);
      comm.reduce_scatter(in.data(), out.data(), counts, DType::f32).wait();
      expect(out[each - 1] == static_cast<float>(ranks), "reduce_scatter");
    });
    std::fill(in.begin(), in.end(), static_cast<float>(me));
    measure(comm, "all_gather", bytes, [&] {
      comm.all_gather(in.data(), out.data(), counts, DType::f32).wait();
      expect(out.front() == 0 && out.back() == static_cast<float>(ranks - 1), "all_gather");
    });
    measure(comm, "all_to_all", bytes, [&] {
      comm.all_to_all(in.data(), counts, out.data(), counts, DType::f32).wait();
      expect(out.front() == 0 && out.back() == static_cast<float>(ranks - 1), "all_to_all");
    });
    measure(comm, "broadcast", bytes, [&] {
      out.back() = static_cast<float>(me);
      comm.broadcast(out.data(), count, DType::f32, ranks - 1).wait();
      expect(out.back() == static_cast<float>(ranks - 1), "broadcast");
    });
    if (ranks == 1) continue;
    measure(comm, "send, receive", bytes, [&] {
      comm::Work sent = comm.isend(in.data(), count * 4, (me + 1) % ranks, 0);
      comm.irecv(out.data(), count * 4, (me + ranks - 1) % ranks, 0).wait();
      sent.wait();
      expect(out.back() == static_cast<float>((me + ranks - 1) % ranks), "send, receive");
    });
  }
}

void run(Options& options) {
  if (options.check_rank) return check_communication();
  if (options.check == !options.command.empty())
    throw base::ConfigError("launch needs either a command after -- or --check");
  if (options.check) {
    options.command = {std::filesystem::read_symlink("/proc/self/exe"), "launch", "--check-rank"};
    options.no_prefix = true;
  }
  options.launch.prefix = !options.no_prefix;
  if (int code = comm::launch_local(options.launch, options.command); code != 0) std::exit(code);
}

}  // namespace

void add_launch(CLI::App& program) {
  auto options = std::make_shared<Options>();
  CLI::App* sub = program.add_subcommand("launch", "start ranks on this host and look after them");
  comm::LaunchOptions& launch = options->launch;
  sub->add_option("--nproc", launch.nproc, "ranks on this host")->check(CLI::PositiveNumber);
  sub->add_option("--nnodes", launch.nnodes, "hosts; each runs trireme launch");
  sub->add_option("--node-rank", launch.node_rank, "this host's number, from 0");
  sub->add_option("--master-addr", launch.master_addr, "address of the host of rank 0");
  sub->add_option("--master-port", launch.master_port, "A free port there; 0: chosen (one host)")
      ->check(CLI::Range(0, 65535));
  sub->add_option("--max-restarts", launch.max_restarts,
                  "start all ranks again after a failure, this many times");
  sub->add_flag("--no-prefix", options->no_prefix, "leave the ranks' output as it is");
  sub->add_flag("--check", options->check, "run every collective on the ranks and print times");
  sub->add_flag("--check-rank", options->check_rank)->group("");
  sub->add_option("command", options->command, "the program and its arguments, after --");
  sub->callback([options] { run(*options); });
}

}  // namespace trireme::tools
