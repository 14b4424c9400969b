#pragma once
// ByteStream: bytes that come in order: a file, a compressed one (.gz, .zst) or standard input ("-").
//
//   auto stream = open_stream("books.jsonl.zst");
//   while (size_t n = stream->read(buffer, sizeof buffer)) ...

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace trireme::data {

class ByteStream {
 public:
  virtual ~ByteStream() = default;
  /// Up to `size` bytes; 0 at the end. IoError, or FormatError where the compressed bytes are
  /// damaged or end too early.
  virtual size_t read(char* out, size_t size) = 0;
  /// Passes over so many bytes; FormatError where the file ends before.
  virtual void skip(int64_t bytes);

 protected:
  [[noreturn]] void refuse_skip(int64_t bytes) const;
  explicit ByteStream(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

/// Whether the length of what comes is not known before: the path ends in .gz or .zst, or is "-".
bool is_stream(const std::string& path);
/// The path without the ending that says how it is compressed.
std::string without_compression(const std::string& path);
/// ConfigError where this build cannot read the kind.
std::unique_ptr<ByteStream> open_stream(const std::string& path);

/// In zstd.cc, or zstd_absent.cc where the library is missing.
std::unique_ptr<ByteStream> open_zstd(const std::string& path);

}  // namespace trireme::data
