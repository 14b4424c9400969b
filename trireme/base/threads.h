#pragma once
// Threads: a parallel loop whose result does not depend on the number of threads, and a bounded queue
// between a producer and a consumer.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>

namespace trireme::base {

/// Cores that this process may use (respects the CPU affinity mask).
int available_cores();

/// Calls `body(i)` for each i in [0, count) on up to `threads` threads; rethrows the error of the lowest i.
void parallel_for(int64_t count, int threads, const std::function<void(int64_t)>& body);

/// A queue of at most `capacity` items. `close` lets consumers drain what is left, then pop returns nothing.
template <class T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  /// Waits for room; false when the queue was closed.
  bool push(T item) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return closed_ || items_.size() < capacity_; });
    if (closed_) return false;
    items_.push_back(std::move(item));
    changed_.notify_all();
    return true;
  }

  /// Waits for an item; nothing once the queue is closed and empty.
  std::optional<T> pop() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return closed_ || !items_.empty(); });
    if (items_.empty()) return std::nullopt;
    T item = std::move(items_.front());
    items_.pop_front();
    changed_.notify_all();
    return item;
  }

  void close() {
    std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

 private:
  size_t capacity_;
  std::deque<T> items_;
  bool closed_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace trireme::base
