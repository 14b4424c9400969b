#pragma once
// TokenFile: the .bin file of an indexed dataset: mapped, read piece by piece, or held in memory.
// Watch: tells when a file that is open has been changed, cut off or replaced since, so that
// nothing reads on in other data or past the end of a map. Internal to indexed.cc.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/io.h"
#include "trireme/data/indexed.h"

namespace trireme::data {

class Watch {
 public:
  explicit Watch(const std::string& path);
  ~Watch();
  Watch(Watch&& other) noexcept;
  Watch& operator=(Watch&&) = delete;
  int descriptor() const { return fd_; }
  int64_t size() const { return size_; }
  /// FormatError unless the file is as it was.
  void check() const;

 private:
  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0, seconds_ = 0, nanoseconds_ = 0;
};

class TokenFile {
 public:
  TokenFile(const std::string& path, Access access);
  const std::string& path() const { return path_; }
  int64_t size() const { return watch_.size(); }
  /// Bytes [begin, begin + count): in place, or read into `scratch`.
  std::span<const std::byte> bytes(int64_t begin, int64_t count,
                                   std::vector<std::byte>& scratch) const;

 private:
  void read(int64_t begin, int64_t count, std::byte* out) const;

  std::string path_;
  Access access_;
  Watch watch_;
  std::optional<base::MappedFile> map_;  // where it is mapped
  std::vector<std::byte> held_;          // where it is cached
};

}  // namespace trireme::data
