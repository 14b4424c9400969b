#include "trireme/data/token_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "trireme/base/error.h"

namespace trireme::data {

namespace {

/// A blend of hundreds of datasets opens more files than systems allow at first; up to the hard
/// limit a process may allow itself more.
int open_watched(const std::string& path) {
  constexpr rlim_t kWanted = 65536;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < std::min(kWanted, limit.rlim_max)) {
    limit.rlim_cur = std::min(kWanted, limit.rlim_max);
    ::setrlimit(RLIMIT_NOFILE, &limit);  // opening tells where it is too low still
  }
  return ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
}

}  // namespace

Watch::Watch(const std::string& path)
    : path_(path), fd_(open_watched(path)) {
  struct stat now {};
  if (fd_ < 0 || ::fstat(fd_, &now) != 0) throw base::IoError(path, errno, "opening");
  size_ = now.st_size;
  seconds_ = now.st_mtim.tv_sec;
  nanoseconds_ = now.st_mtim.tv_nsec;
}

Watch::~Watch() {
  if (fd_ >= 0) ::close(fd_);
}

Watch::Watch(Watch&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      size_(other.size_),
      seconds_(other.seconds_),
      nanoseconds_(other.nanoseconds_) {}

void Watch::check() const {
  struct stat now {};
  if (::fstat(fd_, &now) != 0) throw base::IoError(path_, errno, "looking at");
  const char* what = now.st_nlink == 0      ? "was replaced or removed"
                     : now.st_size != size_ ? "changed its size"
                     : now.st_mtim.tv_sec != seconds_ || now.st_mtim.tv_nsec != nanoseconds_
                         ? "was written to"
                         : nullptr;
  if (what) {
    throw base::FormatError(fmt::format(
        "{} {} while it was being read ({} bytes before, {} now); a run needs the same data from "
        "beginning to end: write other data under another name",
        path_, what, size_, static_cast<int64_t>(now.st_size)));
  }
}

TokenFile::TokenFile(const std::string& path, Access access)
    : path_(path), access_(access), watch_(path) {
  if (access_ == Access::mmap) map_.emplace(path);
  if (access_ == Access::cached) {
    held_.resize(static_cast<size_t>(size()));
    read(0, size(), held_.data());
  }
}

void TokenFile::read(int64_t begin, int64_t count, std::byte* out) const {
  while (count > 0) {
    const ssize_t n = ::pread(watch_.descriptor(), out, static_cast<size_t>(count), begin);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw base::IoError(path_, errno, "reading");
    if (n == 0)
      throw base::FormatError(path_, begin,
                              "the file ends here; it was cut off while it was being read");
    out += n, begin += n, count -= n;
  }
}

std::span<const std::byte> TokenFile::bytes(int64_t begin, int64_t count,
                                            std::vector<std::byte>& scratch) const {
  const auto first = static_cast<size_t>(begin), size = static_cast<size_t>(count);
  if (access_ == Access::cached) return std::span(held_).subspan(first, size);
  watch_.check();
  if (access_ == Access::mmap) return map_->bytes().subspan(first, size);
  scratch.resize(size);
  read(begin, count, scratch.data());
  return scratch;
}

}  // namespace trireme::data
