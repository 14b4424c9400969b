#include "trireme/data/compressed.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <vector>

#include "trireme/base/error.h"

namespace trireme::data {
namespace {

class Gzip : public ByteStream {
 public:
  explicit Gzip(const std::string& path) : ByteStream(path), file_(gzopen(path.c_str(), "rb")) {
    if (!file_) throw base::IoError(path, errno, "opening");
    gzbuffer(file_, 256 << 10);
  }
  ~Gzip() override { gzclose(file_); }
  size_t read(char* out, size_t size) override {
    const int n = gzread(file_, out, static_cast<unsigned>(std::min<size_t>(size, INT_MAX)));
    int error = Z_OK;
    const char* what = gzerror(file_, &error);
    if (error == Z_ERRNO) throw base::IoError(path_, errno, "reading");
    if (n < 0 || error != Z_OK)
      throw base::FormatError(path_, gzoffset(file_),
                              fmt::format("damaged or cut off gzip data: {}", what));
    if (n > 0 && gzdirect(file_))
      throw base::FormatError(path_, 0, "is not compressed by gzip, though its name says so");
    return static_cast<size_t>(n);
  }

 private:
  gzFile file_;
};

/// Standard input, or a file as it is.
class Plain : public ByteStream {
 public:
  Plain() : ByteStream("standard input"), fd_(STDIN_FILENO) {}
  explicit Plain(const std::string& path)
      : ByteStream(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) throw base::IoError(path, errno, "opening");
  }
  ~Plain() override {
    if (fd_ != STDIN_FILENO) ::close(fd_);
  }
  size_t read(char* out, size_t size) override {
    while (true) {
      const ssize_t n = ::read(fd_, out, size);
      if (n >= 0) return static_cast<size_t>(n);
      if (errno != EINTR) throw base::IoError(path_, errno, "reading");
    }
  }
  void skip(int64_t bytes) override {
    struct stat now {};
    if (fd_ == STDIN_FILENO || ::fstat(fd_, &now) != 0 || !S_ISREG(now.st_mode))
      return ByteStream::skip(bytes);
    if (bytes > now.st_size) refuse_skip(bytes);
    if (::lseek(fd_, bytes, SEEK_CUR) < 0) throw base::IoError(path_, errno, "going on in");
  }

 private:
  int fd_;
};

}  // namespace

bool is_stream(const std::string& path) {
  return path == "-" || path.ends_with(".gz") || path.ends_with(".zst");
}

std::string without_compression(const std::string& path) {
  for (std::string_view ending : {".gz", ".zst"})
    if (path.ends_with(ending)) return path.substr(0, path.size() - ending.size());
  return path;
}

std::unique_ptr<ByteStream> open_stream(const std::string& path) {
  if (path == "-") return std::make_unique<Plain>();
  if (path.ends_with(".gz")) return std::make_unique<Gzip>(path);
  return path.ends_with(".zst") ? open_zstd(path) : std::make_unique<Plain>(path);
}

void ByteStream::refuse_skip(int64_t bytes) const {
  throw base::FormatError(path_, bytes,
                          "the file ends before this place, where the run is to go on");
}

void ByteStream::skip(int64_t bytes) {
  std::vector<char> scratch(256 << 10);
  for (int64_t left = bytes; left > 0;) {
    const size_t n = read(scratch.data(), std::min(scratch.size(), static_cast<size_t>(left)));
    if (n == 0) refuse_skip(bytes);
    left -= static_cast<int64_t>(n);
  }
}

}  // namespace trireme::data
