#include "trireme/comm/socket.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

constexpr size_t kPacket = 64 << 10;
constexpr size_t kDescriptors = 250;  // the kernel's limit is 253 a packet

using Clock = std::chrono::steady_clock;

socklen_t fill(sockaddr_un& to, const std::string& address) {
  if (address.size() < 2 || address[0] != '@' || address.size() >= sizeof to.sun_path)
    throw base::ConfigError(
        fmt::format("'{}' is no local address; expected '@' and a name", address));
  to = {};
  to.sun_family = AF_UNIX;
  std::memcpy(to.sun_path + 1, address.data() + 1, address.size() - 1);  // a leading zero: no file
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size());
}

Descriptor open_socket() {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket)
    throw base::CommError(fmt::format("cannot open a Unix socket: {}", std::strerror(errno)));
  return socket;
}

/// Whether the descriptor became readable in time.
bool readable(int fd, std::chrono::milliseconds timeout) {
  auto limit = Clock::now() + timeout;
  for (;;) {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(limit - Clock::now()).count();
    pollfd wait{fd, POLLIN, 0};
    int ready = ::poll(&wait, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30)));
    if (ready > 0) return true;
    if (ready == 0 && left <= 0) return false;
    if (ready < 0 && errno != EINTR) return false;
  }
}

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

Descriptor listen_local(std::string& address) {
  uint64_t secret[2];
  if (::getrandom(secret, sizeof secret, 0) != sizeof secret)
    throw base::CommError(fmt::format("cannot draw a socket's name: {}", std::strerror(errno)));
  address = fmt::format("@trireme-{:016x}{:016x}", secret[0], secret[1]);
  Descriptor socket = open_socket();
  sockaddr_un name;
  socklen_t size = fill(name, address);
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&name), size) != 0 ||
      ::listen(socket.get(), 1024) != 0)
    throw base::CommError(fmt::format("cannot listen on {}: {}", address, std::strerror(errno)));
  return socket;
}

std::optional<Descriptor> accept_local(int socket, std::chrono::milliseconds timeout) {
  auto limit = Clock::now() + timeout;
  for (;;) {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(limit - Clock::now());
    if (!readable(socket, std::max(left, std::chrono::milliseconds(0)))) return std::nullopt;
    Descriptor connection(::accept4(socket, nullptr, nullptr, SOCK_CLOEXEC));
    if (!connection) continue;
    ucred peer{};
    socklen_t size = sizeof peer;
    if (::getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
        peer.uid == ::geteuid())
      return connection;
  }
}

Descriptor connect_local(const std::string& address) {
  Descriptor socket = open_socket();
  sockaddr_un name;
  socklen_t size = fill(name, address);
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&name), size) != 0)
    throw base::CommError(
        fmt::format("cannot connect to {}: {}; the process that opened it has ended, or runs on "
                    "another host",
                    address, std::strerror(errno)));
  return socket;
}

bool send_packet(int socket, std::string_view text, std::span<const int> descriptors) {
  base::check(text.size() <= kPacket && descriptors.size() <= kDescriptors,
              "a packet of {} bytes, {} descriptors", text.size(), descriptors.size());
  iovec part{const_cast<char*>(text.data()), text.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kDescriptors * sizeof(int))] = {};
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  }
  ssize_t sent;
  do {
    sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(text.size());
}

std::optional<Packet> receive_packet(int socket, std::chrono::milliseconds timeout) {
  if (!readable(socket, timeout)) return std::nullopt;
  std::string buffer(kPacket, '\0');
  iovec part{buffer.data(), buffer.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kDescriptors * sizeof(int))];
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t bytes;
  do {
    bytes = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (bytes < 0 && errno == EINTR);
  if (bytes <= 0) return std::nullopt;
  buffer.resize(static_cast<size_t>(bytes));
  Packet packet{std::move(buffer), {}};
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      packet.descriptors.emplace_back(fd);
    }
  }
  return packet;
}

}  // namespace trireme::comm
