#include "trireme/base/io.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "trireme/base/error.h"

namespace trireme::base {
namespace {

constexpr size_t kReadBytes = 1 << 20;
// So many bytes after one another are handed to the disk at a time.
constexpr size_t kWriteBytes = 4 << 20;
constexpr size_t kPage = 4096;

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

int open_to_read(const std::string& path) {
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw IoError(path, errno, "opening");
  return fd;
}

size_t regular_file_size(int fd, const std::string& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) throw IoError(path, errno, "reading its size");
  if (S_ISDIR(info.st_mode)) throw IoError(path, EISDIR, "opening");
  return static_cast<size_t>(info.st_size);
}

}  // namespace

std::string read_file(const std::string& path) {
  Descriptor file{open_to_read(path)};
  regular_file_size(file.fd, path);
  std::string content;
  std::string chunk(kReadBytes, '\0');
  while (true) {
    ssize_t n = ::read(file.fd, chunk.data(), chunk.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw IoError(path, errno, "reading");
    if (n == 0) return content;
    content.append(chunk.data(), static_cast<size_t>(n));
  }
}

void make_folders(const std::string& path, const std::string& doing) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) throw IoError(path, error.value(), doing);
}

void sync_directory(const std::string& path) {
  Descriptor directory{::open(path.empty() ? "." : path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (directory.fd < 0) throw IoError(path, errno, "opening the directory");
  if (::fsync(directory.fd) != 0 && errno != EINVAL) throw IoError(path, errno, "fsync");
}

void write_file_atomic(const std::string& path, std::string_view content) {
  std::string temporary = path + ".tmp";
  {
    FileWriter writer(temporary);
    writer.write(content);
    writer.close();
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    int error_number = errno;
    ::unlink(temporary.c_str());
    throw IoError(path, error_number, "renaming the finished file");
  }
  size_t slash = path.rfind('/');
  sync_directory(slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash));
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
  Descriptor file{open_to_read(path)};
  size_ = regular_file_size(file.fd, path);
  if (size_ == 0) return;
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.fd, 0);
  if (address == MAP_FAILED) throw IoError(path, errno, "mapping");
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

ScratchFile::ScratchFile(const std::string& folder, int64_t size) : size_(static_cast<size_t>(size)) {
  std::string path = folder + "/trireme-scratch-XXXXXX";
  Descriptor file{::mkostemp(path.data(), O_CLOEXEC)};
  if (file.fd < 0) throw IoError(folder, errno, "creating a scratch file in the folder");
  ::unlink(path.c_str());
  // Space that runs out later would be a SIGBUS.
  if (const int failed = ::posix_fallocate(file.fd, 0, size); failed != 0)
    throw IoError(folder, failed, fmt::format("reserving {} bytes of a scratch file in the folder", size));
  void* address = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd, 0);
  if (address == MAP_FAILED) throw IoError(folder, errno, "mapping a scratch file of the folder");
  data_ = static_cast<std::byte*>(address);
}

ScratchFile::~ScratchFile() { ::munmap(data_, size_); }

FileWriter::FileWriter(const std::string& path, Caching caching)
    : path_(path),
      bypass_(caching == Caching::bypassed),
      buffer_(static_cast<std::byte*>(std::aligned_alloc(kPage, kWriteBytes)), &std::free) {
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) throw IoError(path, errno, "creating");
}

FileWriter::~FileWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(path_.c_str());
}

void FileWriter::write(const void* data, size_t size) {
  const auto* from = static_cast<const std::byte*>(data);
  for (size_t n = 0; size > 0; from += n, size -= n) {
    n = std::min(size, kWriteBytes - buffered_);
    std::memcpy(buffer_.get() + buffered_, from, n);
    buffered_ += n;
    bytes_ += static_cast<int64_t>(n);
    if (buffered_ == kWriteBytes) flush();
  }
}

void FileWriter::flush() {
  // Only whole blocks can go past the cache; the file's end is not one.
  const bool whole = buffered_ == kWriteBytes;
  if (bypass_) bypass_ = ::fcntl(fd_, F_SETFL, whole ? O_DIRECT : 0) == 0 && whole;
  const auto size = static_cast<int64_t>(std::exchange(buffered_, 0));
  write_all(buffer_.get(), static_cast<size_t>(size));
  // The disk has work while more is written. A hint: file systems without it write all in fsync.
  if (whole && !bypass_) ::sync_file_range(fd_, bytes_ - size, size, SYNC_FILE_RANGE_WRITE);
}

void FileWriter::write_all(const std::byte* data, size_t size) {
  while (size > 0) {
    const ssize_t n = ::write(fd_, data, size);
    if (n < 0 && errno == EINTR) continue;
    // A file system that cannot bypass the cache after all, or not from where a short write ended.
    if (n < 0 && errno == EINVAL && bypass_) {
      bypass_ = false;
      ::fcntl(fd_, F_SETFL, 0);
      continue;
    }
    if (n < 0) throw IoError(path_, errno, "writing");
    data += n;
    size -= static_cast<size_t>(n);
  }
}

int64_t FileWriter::reserve(int64_t size) {
  flush();
  const int64_t place = bytes_;
  // Where the file system cannot take the space now, it says while writing that there is none.
  if (size > 0 && ::fallocate(fd_, 0, place, size) != 0 &&
      (errno != EOPNOTSUPP || ::ftruncate(fd_, place + size) != 0))
    throw IoError(path_, errno, fmt::format("reserving {} bytes", size));
  bytes_ += size;
  if (::lseek(fd_, bytes_, SEEK_SET) < 0) throw IoError(path_, errno, "seeking");
  return place;
}

void FileWriter::write_at(int64_t place, const void* data, size_t size) {
  const auto* from = static_cast<const std::byte*>(data);
  for (size_t done = 0; done < size;) {
    const ssize_t n = ::pwrite(fd_, from + done, size - done, place + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw IoError(path_, errno, "writing");
    done += static_cast<size_t>(n);
  }
  ::sync_file_range(fd_, place, static_cast<int64_t>(size), SYNC_FILE_RANGE_WRITE);
}

void FileWriter::close() {
  flush();
  if (::fsync(fd_) != 0 && errno != EINVAL) throw IoError(path_, errno, "fsync");
  if (::close(std::exchange(fd_, -1)) != 0) throw IoError(path_, errno, "closing");
}

}  // namespace trireme::base
