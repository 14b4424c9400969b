#include "trireme/formats/tfevents.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>

#include "trireme/base/error.h"

namespace trireme::formats {
namespace {

static_assert(std::endian::native == std::endian::little);

template <class T>
void append_raw(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void append_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

// Wire types of protobuf that an Event needs.
enum Wire { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void append_key(std::string& out, int field, Wire wire) {
  append_varint(out, static_cast<uint64_t>(field) << 3 | wire);
}

void append_bytes(std::string& out, int field, std::string_view bytes) {
  append_key(out, field, kBytes);
  append_varint(out, bytes.size());
  out += bytes;
}

std::string event_now(int64_t step) {
  std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  std::string event;
  append_key(event, 1, kFixed64);  // wall_time
  append_raw(event, now.count());
  append_key(event, 2, kVarint);  // step
  append_varint(event, static_cast<uint64_t>(step));
  return event;
}

std::string file_name() {
  static std::atomic<int> files{0};
  char host[256] = "localhost";
  ::gethostname(host, sizeof host - 1);
  auto seconds = std::chrono::duration_cast<std::chrono::seconds>(
      std::chrono::system_clock::now().time_since_epoch());
  return fmt::format("events.out.tfevents.{}.{}.{}.{}", seconds.count(), host, ::getpid(),
                     files.fetch_add(1));
}

uint32_t masked_crc(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8u;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static const auto table = [] {
    std::array<uint32_t, 256> entries;
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0x82f63b78u : 0);
      entries[i] = value;
    }
    return entries;
  }();
  uint32_t crc = ~0u;
  for (char byte : bytes) crc = table[(crc ^ static_cast<uint8_t>(byte)) & 0xff] ^ crc >> 8;
  return ~crc;
}

std::string frame_record(std::string_view payload) {
  std::string record;
  append_raw(record, static_cast<uint64_t>(payload.size()));
  append_raw(record, masked_crc(record));
  record += payload;
  append_raw(record, masked_crc(payload));
  return record;
}

EventWriter::EventWriter(const std::string& directory) : path_(directory + "/" + file_name()) {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0) throw base::IoError(path_, errno, "creating the event file");
  std::string event = event_now(0);
  append_bytes(event, 3, "brain.Event:2");  // file_version
  write_record(event);
}

EventWriter::~EventWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void EventWriter::scalars(int64_t step, const std::vector<Scalar>& scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    std::string value;
    append_bytes(value, 1, scalar.tag);
    append_key(value, 2, kFixed32);  // simple_value
    append_raw(value, static_cast<float>(scalar.value));
    append_bytes(summary, 1, value);
  }
  std::string event = event_now(step);
  append_bytes(event, 5, summary);
  write_record(event);
}

void EventWriter::write_record(const std::string& payload) {
  std::string record = frame_record(payload);
  for (size_t done = 0; done < record.size();) {
    ssize_t written = ::write(fd_, record.data() + done, record.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw base::IoError(path_, errno, "writing an event");
    done += static_cast<size_t>(written);
  }
}

}  // namespace trireme::formats
