#include "trireme/dist/rendezvous.h"

#include <c10/util/Logging.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/comm/backends/mpi.h"
#include "trireme/comm/backends/shm.h"
#include "trireme/comm/backends/tcp.h"
#include "trireme/comm/backends/threads.h"
#include "trireme/comm/host.h"

C10_DECLARE_int(caffe2_log_level);

namespace trireme::dist {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
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

/// The ranks' store, and the address towards which hosts reach one another.
std::pair<std::unique_ptr<comm::Store>, std::string> store_of(const comm::LaunchedRank& launched,
                                                              std::chrono::milliseconds timeout) {
  if (std::string local = variable("TRIREME_STORE"); !local.empty())
    return {comm::connect_store(local), "127.0.0.1"};
  auto [host, port] = comm::meeting_place(launched);
  // The launcher's agent may serve the store itself.
  bool agent = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  auto store = connect_tcp_store(host, port, launched.rank == 0 && !agent, timeout);
  return {std::make_unique<Prefixed>(std::move(store), fmt::format("trireme/{}/", launched.restarts)),
          host};
}

/// What carries messages between hosts. mpirun's ranks use MPI where trireme is built with it.
bool use_mpi(const comm::LaunchedRank& launched) {
  std::string asked = variable("TRIREME_TRANSPORT");
  if (asked.empty()) return launched.by_mpirun() && !comm::mpi_version().empty();
  if (asked != "mpi" && asked != "tcp")
    throw base::ConfigError(
        fmt::format("the environment's TRIREME_TRANSPORT is '{}'; expected mpi or tcp", asked));
  return asked == "mpi";
}

}  // namespace

std::unique_ptr<comm::Store> connect_tcp_store(const std::string& host, int port, bool serve,
                                               std::chrono::milliseconds timeout) {
  return std::make_unique<TcpStore>(host, port, serve, timeout);
}

std::unique_ptr<comm::Backend> rendezvous_from_env(std::chrono::milliseconds timeout) {
  const comm::LaunchedRank launched = comm::launched_rank();
  const int rank = launched.rank, size = launched.size;
  if (size == 1) return std::move(comm::make_thread_backends(1, timeout).front());
  if (use_mpi(launched)) return comm::make_mpi_backend(timeout, size);
  auto [store, towards] = store_of(launched, timeout);
  store->set(fmt::format("host/{}", rank), comm::host_identity());
  std::vector<std::string> identities;
  for (int r = 0; r < size; ++r) identities.push_back(store->get(fmt::format("host/{}", r), timeout));
  const std::vector<int> hosts = comm::number_hosts(identities);
  std::shared_ptr<comm::Wire> wire;
  if (std::ranges::count(hosts, hosts[0]) < size)
    wire = comm::make_tcp_wire(rank, hosts, *store, comm::own_address(towards), timeout);
  auto backend = comm::make_shm_backend(rank, hosts, *store, wire, timeout);
  // A store that rank 0 serves must live until all have read from it.
  std::vector<int> all(size);
  std::iota(all.begin(), all.end(), 0);
  backend->make(all, "start").barrier();
  return backend;
}

}  // namespace trireme::dist
