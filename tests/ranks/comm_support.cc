#include "tests/ranks/comm_support.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

#include "trireme/comm/backends/threads.h"

namespace trireme::comm {

std::vector<std::string> run_threads(int ranks, const Body& body, std::chrono::milliseconds timeout) {
  auto backends = make_thread_backends(ranks, timeout);
  std::vector<std::string> errors(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      auto backend = std::move(backends[r]);
      try {
        body(*backend);
      } catch (const std::exception& error) {
        errors[r] = error.what();
      }
    });
  for (auto& thread : threads) thread.join();
  return errors;
}

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

void expect_clean(const std::vector<std::string>& errors) {
  for (size_t r = 0; r < errors.size(); ++r) EXPECT_EQ(errors[r], "") << "rank " << r;
}

}  // namespace trireme::comm
