#pragma once
// Runs a body as N ranks: threads of this process, or processes forked from it. A failing rank fails the run.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/comm.h"

namespace trireme::comm {

using Body = std::function<void(Backend&)>;

/// The error of each rank, empty where it had none.
std::vector<std::string> run_threads(int ranks, const Body& body,
                                     std::chrono::milliseconds timeout = std::chrono::seconds(60));

/// Throws with `what` unless `condition` holds; works in every rank.
void require(bool condition, const std::string& what);

/// Fails the test when a rank has an error.
void expect_clean(const std::vector<std::string>& errors);

inline std::vector<int> all_ranks(const Backend& backend) {
  std::vector<int> ranks(backend.size());
  for (int r = 0; r < backend.size(); ++r) ranks[r] = r;
  return ranks;
}

}  // namespace trireme::comm
