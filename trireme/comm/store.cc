#include "trireme/comm/store.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <charconv>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/comm/socket.h"

namespace trireme::comm {
namespace {

using namespace std::chrono_literals;

base::CommError missing(const std::string& key, std::chrono::milliseconds waited) {
  return base::CommError(
      fmt::format("no rank has set '{}' within {:.1f} s; a rank has not started or has ended", key,
                  static_cast<double>(waited.count()) / 1000));
}

int64_t number(const std::string& text) {
  int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// Requests: 's' set, 'g' get, 'a' add; the key's length; a space; the key; the value. Answers: '+'
// and a value, or '-'.
std::string request(char what, const std::string& key, const std::string& value) {
  return fmt::format("{}{} {}{}", what, key.size(), key, value);
}

class Client : public Store {
 public:
  explicit Client(const std::string& address) : socket_(connect_local(address)) {}
  void set(const std::string& key, const std::string& value) override {
    ask(request('s', key, value));
  }
  int64_t add(const std::string& key, int64_t amount) override {
    return number(ask(request('a', key, std::to_string(amount))).substr(1));
  }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    auto limit = std::chrono::steady_clock::now() + timeout;
    for (auto pause = 1ms;; pause = std::min(2 * pause, 20ms)) {
      std::string answer = ask(request('g', key, ""));
      if (answer[0] == '+') return answer.substr(1);
      if (std::chrono::steady_clock::now() >= limit) throw missing(key, timeout);
      std::this_thread::sleep_for(pause);
    }
  }

 private:
  std::string ask(const std::string& text) {
    std::lock_guard lock(mutex_);
    std::optional<Packet> answer;
    if (send_packet(socket_.get(), text)) answer = receive_packet(socket_.get(), 60s);
    if (!answer || answer->text.empty())
      throw base::CommError("the launcher that holds the ranks' store has ended");
    return std::move(answer->text);
  }
  std::mutex mutex_;
  Descriptor socket_;
};

std::string answer(MemoryStore& store, const std::string& text) {
  size_t space = text.find(' '), size = 0;
  if (text.size() < 2 || space == std::string::npos) return "-";
  std::from_chars(text.data() + 1, text.data() + space, size);
  if (size > text.size() - space - 1) return "-";
  std::string key = text.substr(space + 1, size), value = text.substr(space + 1 + size);
  if (text[0] == 'a') return fmt::format("+{}", store.add(key, number(value)));
  if (text[0] == 's') {
    store.set(key, value);
    return "+";
  }
  try {
    return fmt::format("+{}", store.get(key, 0ms));
  } catch (const base::CommError&) {
    return "-";
  }
}

}  // namespace

void MemoryStore::set(const std::string& key, const std::string& value) {
  std::lock_guard lock(mutex_);
  values_[key] = value;
  changed_.notify_all();
}

std::string MemoryStore::get(const std::string& key, std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  auto limit = std::chrono::system_clock::now() + timeout;
  if (!changed_.wait_until(lock, limit, [&] { return values_.contains(key); }))
    throw missing(key, timeout);
  return values_[key];
}

int64_t MemoryStore::add(const std::string& key, int64_t amount) {
  std::lock_guard lock(mutex_);
  int64_t value = number(values_[key]) + amount;
  values_[key] = std::to_string(value);
  changed_.notify_all();
  return value;
}

StoreServer::StoreServer() {
  socket_ = listen_local(address_).release();
  stop_ = ::eventfd(0, EFD_CLOEXEC);
}

StoreServer::~StoreServer() {
  uint64_t one = 1;
  if (thread_.joinable() && ::write(stop_, &one, sizeof one) == sizeof one) thread_.join();
  ::close(socket_);
  ::close(stop_);
}

void StoreServer::serve() {
  thread_ = std::thread([this] { run(); });
}

void StoreServer::run() {
  MemoryStore store;
  std::vector<Descriptor> clients;
  for (;;) {
    std::vector<pollfd> waits{{stop_, POLLIN, 0}, {socket_, POLLIN, 0}};
    for (const Descriptor& client : clients) waits.push_back({client.get(), POLLIN, 0});
    if (::poll(waits.data(), waits.size(), -1) < 0) continue;
    if (waits[0].revents != 0) return;
    for (size_t i = clients.size(); i-- > 0;) {
      if (waits[i + 2].revents == 0) continue;
      auto packet = receive_packet(clients[i].get(), 0ms);
      if (!packet || !send_packet(clients[i].get(), answer(store, packet->text)))
        clients.erase(clients.begin() + static_cast<ptrdiff_t>(i));
    }
    if (waits[1].revents != 0)
      if (auto client = accept_local(socket_, 0ms)) clients.push_back(std::move(*client));
  }
}

std::unique_ptr<Store> connect_store(const std::string& address) {
  return std::make_unique<Client>(address);
}

}  // namespace trireme::comm
