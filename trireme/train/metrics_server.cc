#include "trireme/train/metrics_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <mutex>
#include <string_view>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/comm/socket.h"

namespace trireme::train {
namespace {

using comm::Descriptor;
using Clock = std::chrono::steady_clock;

constexpr auto kPatience = std::chrono::seconds(1);  // with a client
constexpr size_t kLongestRequest = 8192;

Descriptor listening_socket(int port) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) < 0 ||
      ::listen(socket.get(), 16) < 0)
    throw base::ConfigError(fmt::format(
        "train.telemetry.prometheus_port: cannot listen on port {}: {}; choose another, or null",
        port, std::strerror(errno)));
  return socket;
}

// The head of a request as far as it came in time.
std::string receive_head(int client) {
  std::string head;
  char buffer[1024];
  const auto deadline = Clock::now() + kPatience;
  while (Clock::now() < deadline && head.size() < kLongestRequest && head.find("\r\n\r\n") == std::string::npos) {
    const ssize_t n = ::recv(client, buffer, sizeof buffer, 0);
    if (n <= 0) break;
    head.append(buffer, static_cast<size_t>(n));
  }
  return head;
}

std::string response(std::string_view head, const std::string& text) {
  const bool found = head.starts_with("GET /metrics ") || head.starts_with("GET /metrics?");
  const std::string& body = found ? text : "GET /metrics is all there is\n";
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n"
      "Connection: close\r\n\r\n{}",
      found ? "200 OK" : "404 Not Found", body.size(), body);
}

}  // namespace

struct MetricsServer::State {
  explicit State(int port) : listener(listening_socket(port)), wake(::eventfd(0, EFD_CLOEXEC)) {}

  void serve() {
    pollfd waiting[2] = {{listener.get(), POLLIN, 0}, {wake.get(), POLLIN, 0}};
    while (true) {
      if (::poll(waiting, 2, -1) < 0) continue;
      if (waiting[1].revents != 0) return;
      const Descriptor client(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!client) continue;
      const timeval patience{.tv_sec = kPatience.count(), .tv_usec = 0};
      ::setsockopt(client.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
      ::setsockopt(client.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
      const std::string head = receive_head(client.get());
      std::string answer;
      {
        std::lock_guard lock(mutex);
        answer = response(head, text);
      }
      ::send(client.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
    }
  }

  const Descriptor listener, wake;
  std::mutex mutex;
  std::string text;
  std::thread thread;
};

MetricsServer::MetricsServer(int port) : state_(std::make_unique<State>(port)) {
  state_->thread = std::thread([state = state_.get()] { state->serve(); });
}

MetricsServer::~MetricsServer() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(state_->wake.get(), &one, sizeof one);
  state_->thread.join();
}

void MetricsServer::publish(std::string text) {
  std::lock_guard lock(state_->mutex);
  state_->text = std::move(text);
}

}  // namespace trireme::train
