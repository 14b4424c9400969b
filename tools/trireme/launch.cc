// trireme launch: ranks on this host with torchrun's variables, or this host's part of several.
// `--check` tries their communication (check.cc).

#include "trireme/comm/launch.h"

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "tools/trireme/check.h"
#include "tools/trireme/subcommands.h"
#include "trireme/base/error.h"
#include "trireme/dist/rendezvous.h"

namespace trireme::tools {

namespace {

using namespace std::chrono_literals;

struct Options {
  comm::LaunchOptions launch;
  std::vector<std::string> command;
  double timeout_s = 600;
  CheckOptions checked;
  bool no_prefix = false, check = false, check_rank = false;
};

/// The launchers of several hosts: they meet at a store that the first one serves, for the ranks too.
class Launchers {
 public:
  explicit Launchers(const Options& options)
      : hosts_(options.launch.nnodes),
        own_(options.launch.node_rank),
        timeout_(static_cast<int64_t>(options.timeout_s * 1000)),
        store_(dist::connect_tcp_store(options.launch.master_addr, options.launch.master_port, own_ == 0, timeout_)) {}

  /// Returns when all launchers are about to start their ranks, for the same time.
  void meet(int attempt) {
    const std::string key = fmt::format("launchers/ready/{}", attempt);
    store_->add(key, 1);
    for (auto limit = std::chrono::steady_clock::now() + timeout_; store_->add(key, 0) < hosts_;) {
      if (store_->add("launchers/ended", 0) > 0)
        throw base::CommError("the launcher of another host has ended; start it again on every host");
      if (std::chrono::steady_clock::now() > limit)
        throw base::CommError(fmt::format("{} of {} hosts were ready to start within {:.0f} s; run trireme launch on every "
                                          "host with its own --node-rank and the same --nnodes, --master-addr and --master-port",
                                          store_->add(key, 0), hosts_, static_cast<double>(timeout_.count()) / 1000));
      std::this_thread::sleep_for(50ms);
    }
  }

  /// Tells the others; the one that serves waits a little for them.
  void end() {
    try {
      store_->add("launchers/ended", 1);
      for (int i = 0; own_ == 0 && i < 100 && store_->add("launchers/ended", 0) < hosts_; ++i)
        std::this_thread::sleep_for(50ms);
    } catch (const base::CommError&) {
      // The first host's launcher has ended already.
    }
  }

 private:
  int hosts_, own_;
  std::chrono::milliseconds timeout_;
  std::unique_ptr<comm::Store> store_;
};

int launch(Options& options) {
  if (options.launch.nnodes < 2 || options.launch.master_port == 0)  // which launch_local refuses for several hosts
    return comm::launch_local(options.launch, options.command);
  Launchers launchers(options);
  options.launch.before_start = [&](int attempt) { launchers.meet(attempt); };
  int code = comm::launch_local(options.launch, options.command);
  launchers.end();
  return code;
}

void run(Options& options) {
  if (options.check_rank) return check_communication(options.checked);
  if (options.check == !options.command.empty())
    throw base::ConfigError("launch needs either a command after -- or --check");
  if (options.check) {
    options.command = {std::filesystem::read_symlink("/proc/self/exe"), "launch", "--check-rank",
                       "--tensor-parallel", std::to_string(options.checked.tensor_parallel),
                       "--pipeline-parallel", std::to_string(options.checked.pipeline_parallel)};
    options.no_prefix = true;
  }
  options.launch.prefix = !options.no_prefix;
  if (int code = launch(options); code != 0) std::exit(code);
}

}  // namespace

void add_launch(CLI::App& program) {
  auto options = std::make_shared<Options>();
  CLI::App* sub = program.add_subcommand("launch", "start ranks on this host and look after them");
  comm::LaunchOptions& launch = options->launch;
  sub->add_option("--nproc", launch.nproc, "ranks on this host")->check(CLI::PositiveNumber);
  sub->add_option("--nnodes", launch.nnodes, "hosts; each runs trireme launch");
  sub->add_option("--node-rank", launch.node_rank, "this host's number, from 0");
  sub->add_option("--master-addr", launch.master_addr, "address of the host with node rank 0");
  sub->add_option("--master-port", launch.master_port, "a free port there (29500 with several hosts; else chosen)")
      ->check(CLI::Range(0, 65535));
  sub->add_option("--max-restarts", launch.max_restarts,
                  "start all ranks again after a failure, this many times; train goes on from its newest checkpoint");
  sub->add_option("--timeout", options->timeout_s, "seconds that hosts wait for one another at a start")
      ->check(CLI::PositiveNumber);
  sub->add_flag("--no-prefix", options->no_prefix, "leave the ranks' output as it is");
  sub->add_flag("--check", options->check, "run every collective along every axis of the mesh, print times");
  sub->add_option("--tensor-parallel", options->checked.tensor_parallel, "of --check: tensor ranks")
      ->check(CLI::PositiveNumber);
  sub->add_option("--pipeline-parallel", options->checked.pipeline_parallel, "of --check: pipeline ranks")
      ->check(CLI::PositiveNumber);
  sub->add_flag("--check-rank", options->check_rank)->group("");
  sub->add_option("command", options->command, "the program and its arguments, after --");
  sub->callback([options] {
    if (options->launch.nnodes > 1 && options->launch.master_port == 0) options->launch.master_port = 29500;
    run(*options);
  });
}

}  // namespace trireme::tools
