#include "tools/trireme/ranks.h"

#include <algorithm>
#include <filesystem>

#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/base/threads.h"
#include "trireme/comm/launch.h"
#include "trireme/comm/launched.h"
#include "trireme/dist/device.h"
#include "trireme/dist/rendezvous.h"
#include "trireme/kernels/allocator.h"

namespace trireme::tools {
namespace {

// This program's own command line.
std::vector<std::string> own_command() {
  std::string text = base::read_file("/proc/self/cmdline");
  std::vector<std::string> words;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = text.find('\0', begin);
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  words[0] = std::filesystem::read_symlink("/proc/self/exe").string();
  return words;
}

}  // namespace

int job_size(int ranks) {
  const comm::LaunchedRank launched = comm::launched_rank();
  if (ranks < 0) throw base::ConfigError(fmt::format("--ranks is {}, expected at least 1", ranks));
  if (launched.source.empty()) return std::max(1, ranks);
  if (ranks > 0 && ranks != launched.size) {
    throw base::ConfigError(fmt::format("--ranks {} contradicts {}, which started {}; leave --ranks out", ranks,
                                        launched.source, launched.size));
  }
  return launched.size;
}

bool by_launcher() { return !comm::launched_rank().source.empty(); }

int run_processes(int ranks, double timeout_seconds, const std::string& device,
                  const std::function<void(dist::World&)>& body) {
  dist::check_device(device);
  const comm::LaunchedRank launched = comm::launched_rank();
  int size = job_size(ranks);
  if (launched.source.empty() && size > 1) return comm::launch_local({.nproc = size, .prefix = false}, own_command());
  const int here = launched.here > 0 ? launched.here : launched.size;
  dist::set_rank_threads(std::max(1, base::available_cores() / here));
  kernels::tag_memory(launched.rank);
  auto timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1000));
  dist::World world = dist::World::on_device(launched.size > 1 ? dist::rendezvous_from_env(timeout) : nullptr, device, timeout);
  try {
    body(world);
  } catch (const std::exception& e) {
    world.abort(e.what());
    throw;
  }
  return 0;
}

void run_threads(int ranks, const std::string& device, const std::function<void(dist::World&)>& body) {
  dist::run_ranks(ranks, body, std::max(1, base::available_cores() / ranks), std::chrono::seconds(60), device);
}

}  // namespace trireme::tools
