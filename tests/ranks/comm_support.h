#pragma once
// Runs a body as N ranks: threads of this process, processes forked from it, either on one host or
// as if they were on two with TCP between them, or the processes that mpirun started.

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "trireme/comm/comm.h"

namespace trireme::comm {

#ifdef __SANITIZE_THREAD__  // slow, and its run-time does not follow forks
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif
constexpr const char* kNoFork =
    "ranks as forked processes: not under ThreadSanitizer, not under mpirun";

using Body = std::function<void(Backend&)>;
using std::chrono::milliseconds;

/// How a rank ended: its error, empty where it had none; "signal 9" where its process was killed.
using Outcomes = std::vector<std::string>;

enum class Kind { threads, processes, thread_hosts, process_hosts, mpi };
Outcomes run_ranks(Kind kind, int ranks, const Body& body,
                   milliseconds timeout = std::chrono::seconds(60));
/// The same on hosts of the test's choice, with TCP between them; `hosts[r]` is rank r's.
Outcomes run_on_hosts(Kind kind, const std::vector<int>& hosts, const Body& body,
                      milliseconds timeout = std::chrono::seconds(60));

/// Whether mpirun started this process; then only tests of kind `mpi` run.
bool under_mpirun();

/// Throws with `what` unless `condition` holds; works in every rank.
void require(bool condition, const std::string& what);

/// Fails the test when a rank has an error.
void expect_clean(const Outcomes& outcomes);

std::vector<int> all_ranks(const Backend& backend);
inline Comm world(Backend& backend) {
  return backend.make(all_ranks(backend), "world");
}

/// Seconds since the first call's result was made.
class Watch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Tests that hold for ranks of every kind.
class CommTest : public testing::TestWithParam<Kind> {
 protected:
  Outcomes run(int ranks, const Body& body, milliseconds timeout = std::chrono::seconds(60)) {
    return run_ranks(GetParam(), ranks, body, timeout);
  }
  /// Whether there are that many ranks: mpirun has started a number of them.
  bool fits(int ranks) const;
};
constexpr const char* kTooFewRanks = "mpirun has started fewer ranks";

}  // namespace trireme::comm
