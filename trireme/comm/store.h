#pragma once
// Store: a small shared key-value table through which ranks find one another. Not for data: values
// are short.
//
//   StoreServer server;  ...fork the ranks...  server.serve();
//   In a rank: auto store = connect_store(server.address(), 10s);  store->set("address", "...");

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

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

/// The table of one process; its threads share it.
class MemoryStore : public Store {
 public:
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  int64_t add(const std::string& key, int64_t amount) override;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

/// The table of the processes of one host, behind a Unix socket without a name in the file system.
/// Only processes of the same user are served.
class StoreServer {
 public:
  /// Opens the socket; clients may connect from now on and wait until it serves.
  StoreServer();
  ~StoreServer();
  /// What clients connect to; it holds a secret.
  const std::string& address() const { return address_; }
  /// Starts to answer, on a thread. Call it after the ranks were forked.
  void serve();

 private:
  void run();
  std::string address_;
  int socket_ = -1, stop_ = -1;
  std::thread thread_;
};

/// Connects to a StoreServer; CommError when there is none.
std::unique_ptr<Store> connect_store(const std::string& address);

}  // namespace trireme::comm
