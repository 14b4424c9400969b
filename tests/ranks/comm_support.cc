#include "tests/ranks/comm_support.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <thread>

#include "trireme/comm/backends/mpi.h"
#include "trireme/comm/backends/segment_backend.h"
#include "trireme/comm/backends/shm.h"
#include "trireme/comm/backends/tcp.h"
#include "trireme/comm/backends/threads.h"

namespace trireme::comm {
namespace {

using Backends = std::function<std::unique_ptr<Backend>(int rank)>;

std::string outcome_of(int rank, const Backends& make, const Body& body) {
  try {
    auto backend = make(rank);
    body(*backend);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

Outcomes run_threads(int ranks, const Backends& make, const Body& body) {
  Outcomes outcomes(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] { outcomes[r] = outcome_of(r, make, body); });
  for (auto& thread : threads) thread.join();
  return outcomes;
}

[[noreturn]] void be_rank(int rank, const Backends& make, const Body& body, int report) {
  std::string error = outcome_of(rank, make, body);
  bool written = ::write(report, error.data(), error.size()) == static_cast<ssize_t>(error.size());
  ::_exit(written ? 0 : 1);
}

Outcomes run_processes(StoreServer& server, int ranks, const Backends& make, const Body& body) {
  std::vector<pid_t> processes;
  std::vector<int> reports;
  for (int r = 0; r < ranks; ++r) {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("pipe");
    pid_t child = ::fork();
    if (child == 0) be_rank(r, make, body, ends[1]);
    ::close(ends[1]);
    processes.push_back(child);
    reports.push_back(ends[0]);
  }
  server.serve();
  Outcomes outcomes(ranks);
  for (int r = 0; r < ranks; ++r) {
    char text[4096];
    for (ssize_t n; (n = ::read(reports[r], text, sizeof text)) > 0;) outcomes[r].append(text, n);
    ::close(reports[r]);
    int status = 0;
    ::waitpid(processes[r], &status, 0);
    if (WIFSIGNALED(status)) outcomes[r] = fmt::format("signal {}", WTERMSIG(status));
  }
  return outcomes;
}

/// A variable of Open MPI's or MPICH's mpirun; -1: there is none.
int mpi_variable(const char* open_mpi, const char* mpich) {
  const char* text = std::getenv(open_mpi);
  if (text == nullptr) text = std::getenv(mpich);
  return text == nullptr ? -1 : std::atoi(text);
}

// The first `ranks` processes run the body, and all learn how it ended.
Outcomes run_mpi(int ranks, const Body& body, milliseconds timeout) {
  auto make = [&](int) { return make_mpi_backend(timeout, ranks); };
  int rank = mpi_variable("OMPI_COMM_WORLD_RANK", "PMI_RANK");
  Outcomes outcomes = mpi_all_gather(rank < ranks ? outcome_of(rank, make, body) : "");
  outcomes.resize(ranks);
  return outcomes;
}

std::vector<int> two_hosts(int ranks) {
  std::vector<int> hosts(ranks);
  for (int r = 0; r < ranks; ++r) hosts[r] = r * 2 / ranks;
  return hosts;
}

}  // namespace

Outcomes run_on_hosts(Kind kind, const std::vector<int>& hosts, const Body& body,
                      milliseconds timeout) {
  const int ranks = static_cast<int>(hosts.size());
  const bool several = std::ranges::adjacent_find(hosts, std::not_equal_to<>()) != hosts.end();
  if (kind == Kind::process_hosts) {
    StoreServer server;
    auto make = [&](int rank) {
      auto store = connect_store(server.address());
      auto wire = several ? make_tcp_wire(rank, hosts, *store, "127.0.0.1", timeout) : nullptr;
      return make_shm_backend(rank, hosts, *store, wire, timeout);
    };
    return run_processes(server, ranks, make, body);
  }
  MemoryStore store;
  std::map<int, std::vector<int>> here;
  std::map<int, std::shared_ptr<Segment>> segments;
  for (int r = 0; r < ranks; ++r) here[hosts[r]].push_back(r);
  for (const auto& [host, its] : here) segments[host] = Segment::create(ranks, its, true);
  auto make = [&](int rank) {
    auto wire = several ? make_tcp_wire(rank, hosts, store, "127.0.0.1", timeout) : nullptr;
    return std::make_unique<SegmentBackend>(segments[hosts[rank]], rank, timeout, hosts, wire);
  };
  return run_threads(ranks, make, body);
}

Outcomes run_ranks(Kind kind, int ranks, const Body& body, milliseconds timeout) {
  if (kind == Kind::mpi) return run_mpi(ranks, body, timeout);
  if (kind == Kind::thread_hosts || kind == Kind::process_hosts)
    return run_on_hosts(kind, two_hosts(ranks), body, timeout);
  if (kind == Kind::processes) {
    StoreServer server;
    auto make = [&](int rank) {
      auto store = connect_store(server.address());
      return make_shm_backend(rank, ranks, *store, timeout);
    };
    return run_processes(server, ranks, make, body);
  }
  auto backends = make_thread_backends(ranks, timeout);
  return run_threads(
      ranks, [&](int rank) { return std::move(backends[rank]); }, body);
}

bool under_mpirun() {
  return mpi_variable("OMPI_COMM_WORLD_SIZE", "PMI_SIZE") >= 0;
}

bool CommTest::fits(int ranks) const {
  return GetParam() != Kind::mpi || ranks <= mpi_variable("OMPI_COMM_WORLD_SIZE", "PMI_SIZE");
}

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

void expect_clean(const Outcomes& outcomes) {
  for (size_t r = 0; r < outcomes.size(); ++r) EXPECT_EQ(outcomes[r], "") << "rank " << r;
}

std::vector<int> all_ranks(const Backend& backend) {
  std::vector<int> ranks(backend.size());
  for (int r = 0; r < backend.size(); ++r) ranks[r] = r;
  return ranks;
}

std::vector<Kind> kinds() {
  if (under_mpirun()) return {Kind::mpi};
  if (kThreadSanitizer) return {Kind::threads, Kind::thread_hosts};
  return {Kind::threads, Kind::processes, Kind::thread_hosts, Kind::process_hosts};
}

std::string name_of(const testing::TestParamInfo<Kind>& kind) {
  constexpr const char* kNames[] = {"threads", "processes", "thread_hosts", "process_hosts", "mpi"};
  return kNames[static_cast<int>(kind.param)];
}

INSTANTIATE_TEST_SUITE_P(, CommTest, testing::ValuesIn(kinds()), name_of);

}  // namespace trireme::comm
