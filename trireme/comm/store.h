#pragma once
// Store: a small shared key-value table through which ranks find one another.

#include <chrono>
#include <cstdint>
#include <string>

namespace trireme::comm {

class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Waits for the key; CommError after `timeout`.
  virtual std::string get(const std::string& key, std::chrono::milliseconds timeout) = 0;
  /// Adds to a counter (starting at 0) and returns the new value.
  virtual int64_t add(const std::string& key, int64_t amount) = 0;
};

}  // namespace trireme::comm
