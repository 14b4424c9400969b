#include "trireme/data/compressed.h"

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "trireme/base/error.h"

namespace trireme::data {
namespace {

class Gzip : public ByteStream {
 public:
  explicit Gzip(const std::string& path) : path_(path), file_(gzopen(path.c_str(), "rb")) {
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
  std::string path_;
  gzFile file_;
};

class Input : public ByteStream {
 public:
  size_t read(char* out, size_t size) override {
    while (true) {
      const ssize_t n = ::read(STDIN_FILENO, out, size);
      if (n >= 0) return static_cast<size_t>(n);
      if (errno != EINTR) throw base::IoError("standard input", errno, "reading");
    }
  }
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
  if (path == "-") return std::make_unique<Input>();
  if (path.ends_with(".gz")) return std::make_unique<Gzip>(path);
  return open_zstd(path);
}

}  // namespace trireme::data
