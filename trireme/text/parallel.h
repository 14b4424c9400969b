#pragma once
// for_each_index: work on numbered items by several threads, each item once, in no fixed order.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace trireme::text {

/// Calls `use(i)` for 0 <= i < count on `threads` threads (0: all cores). After an error the
/// remaining items are left; of several errors that of the lowest item is thrown.
template <class Use>
void for_each_index(size_t count, int threads, const Use& use) {
  const size_t wanted = threads > 0 ? threads : std::max(1u, std::thread::hardware_concurrency());
  const size_t workers = std::min(wanted, count);
  if (workers <= 1) {
    for (size_t i = 0; i < count; ++i) use(i);
    return;
  }
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr error;
  size_t failed = count;
  auto work = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        use(i);
      } catch (...) {
        std::lock_guard lock(mutex);
        if (i < failed) failed = i, error = std::current_exception();
        next = count;
      }
    }
  };
  std::vector<std::thread> pool;
  for (size_t k = 1; k < workers; ++k) pool.emplace_back(work);
  work();
  for (std::thread& thread : pool) thread.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace trireme::text
