#include "trireme/comm/backends/tcp.h"

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/comm/socket.h"

namespace trireme::comm {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr int64_t kTurn = 1 << 20;  // bytes that one connection moves before the next has its turn

struct Addresses {
  addrinfo* list = nullptr;
  ~Addresses() {
    if (list != nullptr) ::freeaddrinfo(list);
  }
};

void resolve(const std::string& host, const std::string& port, int type, Addresses& out) {
  addrinfo hints{};
  hints.ai_socktype = type;
  if (int error = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &out.list); error != 0)
    throw base::CommError(
        fmt::format("the address '{}' is not known: {}", host, ::gai_strerror(error)));
}

std::string text_of(const sockaddr* address, socklen_t size) {
  char host[NI_MAXHOST] = {};
  ::getnameinfo(address, size, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  return host;
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

/// Names a connection's end: the first bytes that a rank sends on it.
struct Hello {
  std::array<char, 8> magic{'t', 'r', 'i', 'r', 'e', 'm', 'e', '1'};
  std::array<char, 32> secret{};
  int32_t rank = 0, size = 0;
};

bool send_all(int socket, const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    ssize_t n = ::send(socket, at, size, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

bool receive_all(int socket, void* data, size_t size, Clock::time_point limit) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(limit - Clock::now()).count();
    pollfd wait{socket, POLLIN, 0};
    int ready = ::poll(&wait, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    ssize_t n = ::recv(socket, at, size, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

void set_option(int socket, int level, int name, int value) {
  ::setsockopt(socket, level, name, &value, sizeof value);
}

/// Messages leave at once; a host that has vanished is noticed.
void prepare(int socket) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 4);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, 30'000);
}

/// A socket that listens at `address`, on a port that the system chooses.
Descriptor listen_at(const std::string& address, std::string& port) {
  Addresses found;
  resolve(address, "0", SOCK_STREAM, found);
  Descriptor socket(::socket(found.list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  auto* name = reinterpret_cast<sockaddr*>(&bound);
  if (!socket || ::bind(socket.get(), found.list->ai_addr, found.list->ai_addrlen) != 0 ||
      ::listen(socket.get(), 1024) != 0 || ::getsockname(socket.get(), name, &size) != 0)
    throw base::CommError(
        fmt::format("cannot listen on {}: {}; TRIREME_ADDRESS names the address of this host that "
                    "the other hosts reach",
                    address, std::strerror(errno)));
  char text[NI_MAXSERV] = {};
  ::getnameinfo(name, size, nullptr, 0, text, sizeof text, NI_NUMERICSERV);
  port = text;
  return socket;
}

Descriptor connect_to(int peer, const std::string& address, const std::string& port,
                      Clock::time_point limit) {
  Addresses found;
  resolve(address, port, SOCK_STREAM, found);
  for (int error = 0;;) {
    Descriptor socket(
        ::socket(found.list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    int result = ::connect(socket.get(), found.list->ai_addr, found.list->ai_addrlen);
    if (result != 0 && errno == EINPROGRESS) {
      pollfd wait{socket.get(), POLLOUT, 0};
      auto left = std::chrono::duration_cast<std::chrono::milliseconds>(limit - Clock::now());
      ::poll(&wait, 1, static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1 << 30)));
      socklen_t size = sizeof error;
      ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      result = wait.revents == 0 ? -1 : error;
      if (wait.revents == 0) error = ETIMEDOUT;
    } else if (result != 0) {
      error = errno;
    }
    if (result == 0) return socket;
    if (Clock::now() >= limit)
      throw base::CommError(fmt::format(
          "cannot connect to rank {} at {} port {}: {}; the hosts must reach one another on all "
          "ports above 1024 (TRIREME_ADDRESS chooses a host's address)",
          peer, address, port, std::strerror(error)));
    ::usleep(50'000);
  }
}

class TcpWire : public Wire {
 public:
  explicit TcpWire(std::map<int, Descriptor> sockets)
      : Wire(peers_of(sockets)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    for (auto& [peer, socket] : sockets) {
      prepare(socket.get());
      ::fcntl(socket.get(), F_SETFL, O_NONBLOCK);
      connections_.push_back({.peer = peer, .socket = std::move(socket)});
    }
  }

 private:
  struct Connection {
    int peer = 0;
    Descriptor socket;  // none: the peer is gone
    std::deque<Outgoing> queue = {};
    int64_t sent = 0;  // bytes of the first in the queue, its frame included
    Frame frame = {};
    int64_t received = 0;  // bytes of the frame and what follows
    Message* message = nullptr;
    std::string text = {};
  };

  static std::vector<int> peers_of(const std::map<int, Descriptor>& sockets) {
    std::vector<int> peers;
    for (const auto& [peer, _] : sockets) peers.push_back(peer);
    return peers;
  }

  void transmit(int peer, Outgoing outgoing) override {
    auto to = std::ranges::lower_bound(connections_, peer, {}, &Connection::peer);
    if (to->socket)
      to->queue.push_back(std::move(outgoing));
    else
      sent(outgoing);
  }

  bool drained() const override {
    return std::ranges::all_of(connections_, [](const Connection& c) { return c.queue.empty(); });
  }

  void wake() override {
    uint64_t one = 1;
    [[maybe_unused]] ssize_t written = ::write(wake_.get(), &one, sizeof one);
  }

  void progress() override {
    std::vector<pollfd> waits{{wake_.get(), POLLIN, 0}};
    for (Connection& connection : connections_) {
      write(connection);
      short events = connection.queue.empty() ? POLLIN : POLLIN | POLLOUT;
      waits.push_back({connection.socket.get(), events, 0});  // -1 is skipped
    }
    const int rest = !drained() ? 10 : stopping() ? 0 : 100;
    if (::poll(waits.data(), waits.size(), rest) <= 0) return;
    if (waits[0].revents != 0) {
      uint64_t rings;
      [[maybe_unused]] ssize_t got = ::read(wake_.get(), &rings, sizeof rings);
    }
    for (size_t i = 0; i < connections_.size(); ++i)
      if ((waits[i + 1].revents & ~POLLOUT) != 0) read(connections_[i]);
  }

  void write(Connection& connection) {
    for (int64_t moved = 0; connection.socket && !connection.queue.empty() && moved < kTurn;) {
      Outgoing& next = connection.queue.front();
      constexpr int64_t kFrame = sizeof(Frame);
      const int64_t size = kFrame + next.frame.bytes;
      iovec parts[2];
      int used = 0;
      if (connection.sent < kFrame)
        parts[used++] = {reinterpret_cast<char*>(&next.frame) + connection.sent,
                         static_cast<size_t>(kFrame - connection.sent)};
      const int64_t done = std::max<int64_t>(0, connection.sent - kFrame);
      if (done < next.frame.bytes)
        parts[used++] = {const_cast<std::byte*>(next.payload) + done,
                         static_cast<size_t>(next.frame.bytes - done)};
      msghdr message{};
      message.msg_iov = parts;
      message.msg_iovlen = static_cast<size_t>(used);
      ssize_t n = ::sendmsg(connection.socket.get(), &message, MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (n < 0) return end(connection, std::strerror(errno));
      connection.sent += n;
      moved += n;
      if (connection.sent < size) continue;
      sent(next);
      connection.queue.pop_front();
      connection.sent = 0;
    }
  }

  void read(Connection& connection) {
    for (int64_t moved = 0; connection.socket && moved < kTurn;) {
      constexpr int64_t kFrame = sizeof(Frame);
      Frame& frame = connection.frame;
      std::byte* to = reinterpret_cast<std::byte*>(&frame) + connection.received;
      int64_t left = kFrame - connection.received;
      if (left <= 0) {
        std::byte* payload = connection.message != nullptr
                                 ? connection.message->own_payload()
                                 : reinterpret_cast<std::byte*>(connection.text.data());
        to = payload + (connection.received - kFrame);
        left = kFrame + frame.bytes - connection.received;
      }
      ssize_t n = ::recv(connection.socket.get(), to, static_cast<size_t>(left), 0);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (n <= 0) return end(connection, n == 0 ? "its connection closed" : std::strerror(errno));
      connection.received += n;
      moved += n;
      if (connection.received == kFrame) {
        if (frame.kind == Frame::message)
          connection.message = draft(frame);
        else
          connection.text.resize(static_cast<size_t>(frame.bytes));
      }
      if (connection.received < kFrame || connection.received < kFrame + frame.bytes) continue;
      if (connection.message != nullptr)
        deliver(connection.message);
      else
        hear(frame, connection.text);
      connection.message = nullptr;
      connection.received = 0;
    }
  }

  void end(Connection& connection, const std::string& why) {
    lose(connection.peer, why);
    connection.socket = Descriptor();
    for (const Outgoing& outgoing : connection.queue) sent(outgoing);
    connection.queue.clear();
  }

  // A socket that is closed with unread bytes resets its connection, and what it sent last may be
  // lost: so the peers' ends are awaited, for a while.
  void disconnect() override {
    for (Connection& connection : connections_)
      if (connection.socket) ::shutdown(connection.socket.get(), SHUT_WR);
    auto limit = Clock::now() + 1s;
    for (Connection& connection : connections_) {
      char rest[4096];
      while (connection.socket && receive_all(connection.socket.get(), rest, 1, limit)) {
        while (::recv(connection.socket.get(), rest, sizeof rest, MSG_DONTWAIT) > 0) continue;
      }
    }
    connections_.clear();
  }

  Descriptor wake_;
  std::vector<Connection> connections_;  // by peer
};

/// The next connection that knows the secret, and the rank at its end.
std::optional<std::pair<int, Descriptor>> accept_rank(int listener, const Hello& expected,
                                                      Clock::time_point limit) {
  for (;;) {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(limit - Clock::now()).count();
    pollfd wait{listener, POLLIN, 0};
    int ready = ::poll(&wait, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return std::nullopt;
    Descriptor socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    Hello hello;
    if (!socket || !receive_all(socket.get(), &hello, sizeof hello, Clock::now() + 2s)) continue;
    if (hello.magic == expected.magic && hello.secret == expected.secret &&
        hello.size == expected.size)
      return std::pair(hello.rank, std::move(socket));
  }
}

std::string new_secret() {
  uint64_t secret[2];
  if (::getrandom(secret, sizeof secret, 0) != sizeof secret)
    throw base::CommError(fmt::format("cannot draw the job's secret: {}", std::strerror(errno)));
  return fmt::format("{:016x}{:016x}", secret[0], secret[1]);
}

}  // namespace

std::shared_ptr<Wire> make_tcp_wire(int rank, const std::vector<int>& hosts, Store& store,
                                    const std::string& address, std::chrono::milliseconds timeout) {
  const auto limit = Clock::now() + timeout;
  const int size = static_cast<int>(hosts.size());
  // A job may connect more than once; the ranks' rounds have a key each.
  std::string prefix = fmt::format("tcp/{}", store.add(fmt::format("tcp/rounds/{}", rank), 1));
  std::string port;
  Descriptor listener = listen_at(address, port);
  if (rank == 0) store.set(prefix + "/secret", new_secret());
  store.set(fmt::format("{}/{}", prefix, rank), fmt::format("{} {}", address, port));
  Hello hello;
  std::string secret = store.get(prefix + "/secret", timeout);
  std::copy_n(secret.begin(), std::min(secret.size(), hello.secret.size()), hello.secret.begin());
  hello.rank = rank;
  hello.size = size;

  std::map<int, Descriptor> sockets;
  std::vector<int> absent;
  for (int peer = 0; peer < size; ++peer) {
    if (hosts[peer] == hosts[rank]) continue;
    if (peer > rank) {
      absent.push_back(peer);
      continue;
    }
    std::string place = store.get(fmt::format("{}/{}", prefix, peer), timeout);
    size_t space = place.find(' ');
    sockets[peer] = connect_to(peer, place.substr(0, space), place.substr(space + 1), limit);
    ::fcntl(sockets[peer].get(), F_SETFL, 0);
    if (!send_all(sockets[peer].get(), &hello, sizeof hello))
      throw base::CommError(fmt::format("rank {} ended while rank {} connected", peer, rank));
  }
  while (!absent.empty()) {
    auto next = accept_rank(listener.get(), hello, limit);
    if (!next)
      throw base::CommError(fmt::format(
          "rank {} waited {:.1f} s for ranks {} to connect at {} port {}; they have not started, "
          "have ended, or do not reach this address (TRIREME_ADDRESS chooses another)",
          rank, static_cast<double>(timeout.count()) / 1000, fmt::join(absent, " "), address,
          port));
    auto place = std::ranges::find(absent, next->first);
    if (place == absent.end())
      throw base::CommError(fmt::format(
          "two processes say that they are rank {}; each needs a RANK of its own", next->first));
    absent.erase(place);
    sockets[next->first] = std::move(next->second);
  }
  return std::make_shared<TcpWire>(std::move(sockets));
}

std::string own_address(const std::string& towards) {
  if (const char* given = std::getenv("TRIREME_ADDRESS"); given != nullptr && *given != 0)
    return given;
  // Connecting a datagram socket sends nothing; the system picks the address that it would use.
  Addresses found;
  resolve(towards, "9", SOCK_DGRAM, found);
  Descriptor socket(::socket(found.list->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  auto* name = reinterpret_cast<sockaddr*>(&own);
  if (!socket || ::connect(socket.get(), found.list->ai_addr, found.list->ai_addrlen) != 0 ||
      ::getsockname(socket.get(), name, &size) != 0)
    throw base::CommError(
        fmt::format("there is no way to '{}': {}", towards, std::strerror(errno)));
  std::string address = text_of(name, size);
  if (!is_loopback(address)) return address;
  // Debian gives a host's own name a loopback address, which the other hosts cannot use.
  ifaddrs* interfaces = nullptr;
  if (::getifaddrs(&interfaces) != 0) return address;
  std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> keep(interfaces, ::freeifaddrs);
  for (const ifaddrs* at = interfaces; at != nullptr; at = at->ifa_next) {
    bool usable = at->ifa_addr != nullptr && at->ifa_addr->sa_family == AF_INET &&
                  (at->ifa_flags & IFF_UP) != 0 && (at->ifa_flags & IFF_LOOPBACK) == 0;
    if (usable) return text_of(at->ifa_addr, sizeof(sockaddr_in));
  }
  return address;
}

}  // namespace trireme::comm
