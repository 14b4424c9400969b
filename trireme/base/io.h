#pragma once
// Files: whole reads, memory maps, atomic and durable writes. Every failure is an IoError with the path.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace trireme::base {

/// The whole content of a file.
std::string read_file(const std::string& path);

/// Writes beside the target, fsyncs, then renames: readers see the old content or the new, never a part.
void write_file_atomic(const std::string& path, std::string_view content);

/// Makes a folder and those above it, where they are not there; `doing` is the error's word for it.
void make_folders(const std::string& path, const std::string& doing = "creating the folder");

/// Makes a directory's entries durable.
void sync_directory(const std::string& path);

/// A read-only memory map of a whole file; an empty file maps to an empty span.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// Zeroed memory that lives in a file of `folder`, for what memory does not hold: the system writes its pages there as it
/// needs room. The file has no name, so nothing is left of it whatever ends the process. Its space is taken at once.
class ScratchFile {
 public:
  ScratchFile(const std::string& folder, int64_t size);
  ~ScratchFile();
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  std::span<std::byte> bytes() const { return {data_, size_}; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// Appends to a new file; `close` makes it durable. Destroyed unclosed, it removes the partial file.
class FileWriter {
 public:
  /// Whether what is written stays in the system's memory, for who reads it soon, or goes straight
  /// to the disk, which is faster where all has to be durable (where the file system can do it).
  enum class Caching { kept, bypassed };
  explicit FileWriter(const std::string& path, Caching caching = Caching::kept);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;
  void write(const void* data, size_t size);
  void write(std::string_view text) { write(text.data(), text.size()); }
  int64_t bytes_written() const { return bytes_; }
  /// Makes room for `size` bytes at the end, for `write_at` to fill; returns where it begins. IoError at once where the
  /// disk has no room for them.
  int64_t reserve(int64_t size);
  /// Writes into room that was reserved; several threads may at once.
  void write_at(int64_t place, const void* data, size_t size);
  /// Flushes, fsyncs and closes.
  void close();

 private:
  void flush();
  void write_all(const std::byte* data, size_t size);
  std::string path_;
  bool bypass_;
  int fd_ = -1;
  int64_t bytes_ = 0;
  std::unique_ptr<std::byte, decltype(&std::free)> buffer_;
  size_t buffered_ = 0;
};

}  // namespace trireme::base
