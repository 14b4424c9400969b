#pragma once
// Unix sockets of one host: packets with descriptors between processes of one user. The sockets
// have no name in the file system (the address starts with '@'), so nothing is left behind.

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::comm {

/// An owned descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() {
    int fd = fd_;
    fd_ = -1;
    return fd;
  }

 private:
  int fd_ = -1;
};

struct Packet {
  std::string text;
  std::vector<Descriptor> descriptors;
};

/// A socket that listens at a fresh, unguessable address, which it returns in `address`.
Descriptor listen_local(std::string& address);
/// The next connection from a process of the same user; none after `timeout`.
std::optional<Descriptor> accept_local(int socket, std::chrono::milliseconds timeout);
/// CommError when nobody listens.
Descriptor connect_local(const std::string& address);
/// False when the other end is gone.
bool send_packet(int socket, std::string_view text, std::span<const int> descriptors = {});
/// The next packet; nothing when the other end is gone or after `timeout`.
std::optional<Packet> receive_packet(int socket, std::chrono::milliseconds timeout);

}  // namespace trireme::comm
