#pragma once
// A reader of Protocol Buffers' wire format, enough for SentencePiece's model files: fields one
// after the other, unknown ones skipped. Every length is checked against what is there.
//
//   ProtobufReader reader(bytes, file);
//   while (auto field = reader.next()) { if (field->number == 1) use(field->bytes); }

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "trireme/base/error.h"

namespace trireme::text {

class ProtobufReader {
 public:
  struct Field {
    uint64_t number = 0;
    uint64_t integer = 0;    // of a varint or a fixed-width field
    std::string_view bytes;  // of a length-delimited field
    float real() const {
      const auto bits = static_cast<uint32_t>(integer);
      float value = 0;
      std::memcpy(&value, &bits, sizeof value);
      return value;
    }
  };

  /// `offset`: where `bytes` begin in the file, for messages.
  ProtobufReader(std::string_view bytes, const std::string& file, size_t offset = 0)
      : bytes_(bytes), file_(file), offset_(offset) {}

  /// Where the bytes of the latest field begin in the file.
  size_t field_offset() const { return offset_ + begin_; }

  /// The next field; nothing at the end. FormatError for bytes that are no message.
  std::optional<Field> next() {
    if (at_ == bytes_.size()) return std::nullopt;
    const uint64_t key = varint();
    Field field;
    field.number = key >> 3;
    if (field.number == 0) fail("field number 0");
    switch (key & 7) {
      case 0:
        field.integer = varint();
        break;
      case 1:
        field.integer = fixed(8);
        break;
      case 2: {
        const uint64_t length = varint();
        if (length > bytes_.size() - at_) {
          fail(fmt::format("a field of {} bytes where {} are left", length, bytes_.size() - at_));
        }
        begin_ = at_;
        field.bytes = bytes_.substr(at_, length);
        at_ += length;
        break;
      }
      case 5:
        field.integer = fixed(4);
        break;
      default:
        fail(fmt::format("wire type {}", key & 7));
    }
    return field;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw base::FormatError(file_, static_cast<int64_t>(offset_ + at_), what);
  }

 private:
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (at_ == bytes_.size()) fail("ends within a number");
      const auto byte = static_cast<uint8_t>(bytes_[at_++]);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (!(byte & 0x80)) return value;
    }
    fail("a number of more than 64 bits");
  }
  uint64_t fixed(size_t size) {
    if (bytes_.size() - at_ < size) fail("ends within a number");
    uint64_t value = 0;
    std::memcpy(&value, bytes_.data() + at_, size);
    at_ += size;
    return value;
  }

  std::string_view bytes_;
  const std::string& file_;
  size_t offset_, at_ = 0, begin_ = 0;
};

}  // namespace trireme::text
