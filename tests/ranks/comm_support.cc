#include "tests/ranks/comm_support.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>
#include <thread>

#include "trireme/comm/backends/shm.h"
#include "trireme/comm/backends/threads.h"

namespace trireme::comm {
namespace {

Outcomes run_threads(int ranks, const Body& body, milliseconds timeout) {
  auto backends = make_thread_backends(ranks, timeout);
  Outcomes outcomes(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      auto backend = std::move(backends[r]);
      try {
        body(*backend);
      } catch (const std::exception& error) {
        outcomes[r] = error.what();
      }
    });
  for (auto& thread : threads) thread.join();
  return outcomes;
}

[[noreturn]] void be_rank(int rank, int ranks, const std::string& address, const Body& body,
                          milliseconds timeout, int report) {
  std::string error;
  try {
    auto store = connect_store(address);
    auto backend = make_shm_backend(rank, ranks, *store, timeout);
    body(*backend);
  } catch (const std::exception& failure) {
    error = failure.what();
  }
  bool written = ::write(report, error.data(), error.size()) == static_cast<ssize_t>(error.size());
  ::_exit(written ? 0 : 1);
}

Outcomes run_processes(int ranks, const Body& body, milliseconds timeout) {
  StoreServer server;
  std::vector<pid_t> processes;
  std::vector<int> reports;
  for (int r = 0; r < ranks; ++r) {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("pipe");
    pid_t child = ::fork();
    if (child == 0) be_rank(r, ranks, server.address(), body, timeout, ends[1]);
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

}  // namespace

Outcomes run_ranks(Kind kind, int ranks, const Body& body, milliseconds timeout) {
  return kind == Kind::threads ? run_threads(ranks, body, timeout)
                               : run_processes(ranks, body, timeout);
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

const auto kKinds =
    kThreadSanitizer ? std::vector{Kind::threads} : std::vector{Kind::threads, Kind::processes};
INSTANTIATE_TEST_SUITE_P(, CommTest, testing::ValuesIn(kKinds), [](auto& kind) {
  return kind.param == Kind::threads ? "threads" : "processes";
});

}  // namespace trireme::comm
