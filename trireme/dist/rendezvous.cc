#include "trireme/dist/rendezvous.h"

#include <c10/util/Logging.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <map>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/comm/backends/shm.h"
#include "trireme/comm/backends/threads.h"

C10_DECLARE_int(caffe2_log_level);

namespace trireme::dist {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int number(const char* name) {
  std::string text = variable(name);
  int value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0)
    throw base::ConfigError(
        fmt::format("the environment's {} is '{}'; expected a number from 0", name, text));
  return value;
}

/// The first line of what c10d says; the rest is a stack trace.
std::string first_line(const std::exception& error) {
  std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

class TcpStore : public comm::Store {
 public:
  TcpStore(const std::string& host, int port, bool serve, std::chrono::milliseconds timeout)
      : place_(fmt::format("{}:{}", host, port)) {
    FLAGS_caffe2_log_level = 3;  // c10d prints stack traces before it throws
    guard([&] {
      c10d::TCPStoreOptions options;
      options.port = static_cast<uint16_t>(port);
      options.isServer = serve;
      options.waitWorkers = false;
      options.timeout = timeout;
      store_ = c10::make_intrusive<c10d::TCPStore>(host, options);
    });
  }
  void set(const std::string& key, const std::string& value) override {
    guard([&] { store_->set(key, std::vector<uint8_t>(value.begin(), value.end())); });
  }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    std::string value;
    guard([&] {
      store_->wait({key}, timeout);
      std::vector<uint8_t> bytes = store_->get(key);
      value.assign(bytes.begin(), bytes.end());
    });
    return value;
  }
  int64_t add(const std::string& key, int64_t amount) override {
    int64_t value = 0;
    guard([&] { value = store_->add(key, amount); });
    return value;
  }

 private:
  template <class F>
  void guard(const F& call) {
    try {
      call();
    } catch (const std::exception& error) {
      throw base::CommError(fmt::format(
          "the ranks' store at {} (MASTER_ADDR:MASTER_PORT): {}; is rank 0 running, and is "
          "the port free and reachable?",
          place_, first_line(error)));
    }
  }
  std::string place_;
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

/// Keys of one start of the job: torchrun's store outlives a restart.
class Prefixed : public comm::Store {
 public:
  Prefixed(std::unique_ptr<comm::Store> store, std::string prefix)
      : store_(std::move(store)), prefix_(std::move(prefix)) {}
  void set(const std::string& key, const std::string& value) override {
    store_->set(prefix_ + key, value);
  }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    return store_->get(prefix_ + key, timeout);
  }
  int64_t add(const std::string& key, int64_t amount) override {
    return store_->add(prefix_ + key, amount);
  }

 private:
  std::unique_ptr<comm::Store> store_;
  std::string prefix_;
};

std::unique_ptr<comm::Store> store_of(const LaunchedRank& launched,
                                      std::chrono::milliseconds timeout) {
  if (std::string local = variable("TRIREME_STORE"); !local.empty())
    return comm::connect_store(local);
  std::string host = variable("MASTER_ADDR");
  if (host.empty() && launched.source != "Slurm") host = "127.0.0.1";
  if (host.empty() && variable("SLURM_NNODES") == "1") host = "127.0.0.1";
  if (host.empty())
    throw base::ConfigError(
        "ranks on several hosts need MASTER_ADDR (the host of rank 0) and MASTER_PORT in their "
        "environment");
  int port = variable("MASTER_PORT").empty() ? 29500 : number("MASTER_PORT");
  bool agent =
      variable("TORCHELASTIC_USE_AGENT_STORE") == "True";  // torchrun serves the store itself
  auto store = connect_tcp_store(host, port, launched.rank == 0 && !agent, timeout);
  return std::make_unique<Prefixed>(
      std::move(store), fmt::format("trireme/{}/", variable("TORCHELASTIC_RESTART_COUNT")));
}

/// Processes with the same identity reach one another by Unix sockets and shared memory.
std::string host_identity() {
  char space[64] = {};
  ssize_t size = ::readlink("/proc/self/ns/net", space, sizeof space - 1);
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return base::read_file("/proc/sys/kernel/random/boot_id").substr(0, 36) +
         (size > 0 ? space : "") + " " + name;
}

}  // namespace

LaunchedRank launched_rank() {
  struct Source {
    const char *name, *rank, *size;
  };
  constexpr Source kSources[] = {{"torchrun", "RANK", "WORLD_SIZE"},
                                 {"Slurm", "SLURM_PROCID", "SLURM_NTASKS"},
                                 {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                 {"PMI", "PMI_RANK", "PMI_SIZE"}};
  for (const Source& source : kSources) {
    bool rank = !variable(source.rank).empty(), size = !variable(source.size).empty();
    if (!rank && !size) continue;
    if (rank != size) {
      if (source.rank != std::string("RANK"))
        continue;  // Slurm sets some of its variables for other programs too
      throw base::ConfigError(fmt::format("the environment has {} but no {}; a launcher sets both",
                                          rank ? source.rank : source.size,
                                          rank ? source.size : source.rank));
    }
    LaunchedRank launched{number(source.rank), number(source.size), source.name};
    if (launched.rank >= launched.size)
      throw base::ConfigError(
          fmt::format("the environment's {} is {} with {} {}; ranks are numbered from 0",
                      source.rank, launched.rank, source.size, launched.size));
    return launched;
  }
  return {};
}

std::unique_ptr<comm::Store> connect_tcp_store(const std::string& host, int port, bool serve,
                                               std::chrono::milliseconds timeout) {
  return std::make_unique<TcpStore>(host, port, serve, timeout);
}

std::unique_ptr<comm::Backend> rendezvous_from_env(std::chrono::milliseconds timeout) {
  LaunchedRank launched = launched_rank();
  if (launched.size == 1) return std::move(comm::make_thread_backends(1, timeout).front());
  auto store = store_of(launched, timeout);
  store->set(fmt::format("host/{}", launched.rank), host_identity());
  std::map<std::string, std::vector<int>> hosts;
  for (int r = 0; r < launched.size; ++r)
    hosts[store->get(fmt::format("host/{}", r), timeout)].push_back(r);
  if (hosts.size() > 1) {
    std::string places;
    for (const auto& [host, ranks] : hosts)
      places +=
          fmt::format("; {}: ranks {}", host.substr(host.find(' ') + 1), fmt::join(ranks, " "));
    throw base::ConfigError(fmt::format(
        "the {} ranks run on {} hosts (or in containers without a common network){}; this "
        "program connects ranks of one host only, the mpi backend is not built",
        launched.size, hosts.size(), places));
  }
  auto backend = comm::make_shm_backend(launched.rank, launched.size, *store, timeout);
  // A store that rank 0 serves must live until all have read from it.
  std::vector<int> all(launched.size);
  for (int r = 0; r < launched.size; ++r) all[r] = r;
  backend->make(all, "start").barrier();
  return backend;
}

}  // namespace trireme::dist
