#include <zstd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/data/compressed.h"

namespace trireme::data {
namespace {

class Zstd : public ByteStream {
 public:
  explicit Zstd(const std::string& path)
      : ByteStream(path),
        file_(std::fopen(path.c_str(), "rb")),
        context_(ZSTD_createDCtx()),
        buffer_(ZSTD_DStreamInSize()) {
    if (!file_) throw base::IoError(path, errno, "opening");
  }
  size_t read(char* out, size_t size) override {
    ZSTD_outBuffer to{out, size, 0};
    while (to.pos == 0) {
      if (from_.pos == from_.size) {
        const size_t n = std::fread(buffer_.data(), 1, buffer_.size(), file_.get());
        if (n == 0 && std::ferror(file_.get())) throw base::IoError(path_, errno, "reading");
        if (n == 0 && inside_frame_) throw base::FormatError(path_, consumed_, "cut off zstd data");
        if (n == 0) return 0;
        consumed_ += static_cast<int64_t>(n);
        from_ = {buffer_.data(), n, 0};
      }
      const size_t left = ZSTD_decompressStream(context_.get(), &to, &from_);
      if (ZSTD_isError(left)) {
        throw base::FormatError(path_, consumed_ - static_cast<int64_t>(from_.size - from_.pos),
                                fmt::format("damaged zstd data: {}", ZSTD_getErrorName(left)));
      }
      inside_frame_ = left != 0;
    }
    return to.pos;
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
    void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
  };
  std::unique_ptr<std::FILE, Close> file_;
  std::unique_ptr<ZSTD_DCtx, Close> context_;
  std::vector<char> buffer_;
  ZSTD_inBuffer from_{nullptr, 0, 0};
  int64_t consumed_ = 0;
  bool inside_frame_ = false;
};

}  // namespace

std::unique_ptr<ByteStream> open_zstd(const std::string& path) {
  return std::make_unique<Zstd>(path);
}

}  // namespace trireme::data
