#include "trireme/data/index_file.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "trireme/base/error.h"
#include "trireme/data/indexed_format.h"

namespace trireme::data {

using base::DType;
using base::FormatError;
using format::load;

IndexFile::IndexFile(const std::string& path, const std::string& data_path, int64_t data_bytes)
    : file_(path) {
  auto bytes = file_.bytes();
  std::string_view start(reinterpret_cast<const char*>(bytes.data()),
                         std::min(bytes.size(), format::kMegatronMagic.size()));
  const auto begins = [&](std::string_view magic) {
    const size_t size = std::min(magic.size(), start.size());
    return size > 0 && start.substr(0, size) == magic.substr(0, size);
  };
  if (begins(format::kMegatronMagic)) {
    read_megatron();
  } else if (begins(format::kTorchnetMagic)) {
    read_torchnet();
  } else {
    throw FormatError(
        path, 0,
        fmt::format("starts with \"{}\"; expected MMIDIDX or TNTIDX and two zero bytes: this is no "
                    "index of an indexed dataset",
                    fmt::format("{:02x}",
                                fmt::join(std::span(reinterpret_cast<const uint8_t*>(start.data()),
                                                    start.size()),
                                          " "))));
  }
  tokens_ = data_bytes / base::size_of(dtype_);
  check_sequences(data_bytes, data_path);
  check_boundaries();
}

DType IndexFile::dtype_of_code(uint64_t code, int64_t place) const {
  for (const format::Code& known : format::kCodes) {
    if (known.code == code) return known.dtype;
  }
  throw FormatError(
      file_.path(), place,
      fmt::format(
          "dtype code {} is no integer type; expected 1 (uint8), 2 (int8), 3 (int16), 4 (int32), "
          "5 (int64) or 8 (uint16)",
          code));
}

void IndexFile::read_megatron() {
  auto bytes = file_.bytes();
  constexpr int64_t kHeader = format::kMegatronHeader;
  if (std::ssize(bytes) < kHeader) {
    throw FormatError(
        file_.path(), std::ssize(bytes),
        fmt::format("the file ends inside its header; expected at least {} bytes", kHeader));
  }
  if (auto version = load<uint64_t>(bytes.data() + 9); version != 1)
    throw FormatError(file_.path(), 9, fmt::format("version {}; expected 1", version));
  dtype_ = dtype_of_code(load<uint8_t>(bytes.data() + 17), 17);

  uint64_t size = bytes.size(), room = size - kHeader;
  auto sequences = load<uint64_t>(bytes.data() + 18), entries = load<uint64_t>(bytes.data() + 26);
  if (sequences <= (size - 26) / 12 && size == 26 + 12 * sequences) {
    throw FormatError(
        file_.path(), 26,
        "ends after the offsets, as fairseq's variant without documents does; expected "
        "Megatron's, with a document count and boundaries");
  }
  if (sequences > room / 12) {
    throw FormatError(
        file_.path(), 18,
        fmt::format("{} sequences need at least {} x 12 bytes after the header; the file "
                    "has {}: it is truncated or damaged",
                    sequences, sequences, room));
  }
  if (entries == 0 || entries > (room - 12 * sequences) / 8) {
    throw FormatError(
        file_.path(), 26,
        fmt::format("{} document entries; expected at least 1 and at most the {} that the "
                    "file has room for: it is truncated or damaged",
                    entries, (room - 12 * sequences) / 8));
  }
  uint64_t expected = kHeader + 12 * sequences + 8 * entries;
  if (size == expected + sequences && sequences > 0) {
    throw FormatError(file_.path(), static_cast<int64_t>(expected),
                      "has a mode for each sequence (a multimodal dataset); expected text only");
  }
  if (size != expected) {
    throw FormatError(
        file_.path(), static_cast<int64_t>(std::min(size, expected)),
        fmt::format("the file has {} bytes; {} sequences and {} document entries take {}", size,
                    sequences, entries, expected));
  }
  sequences_ = static_cast<int64_t>(sequences);
  documents_ = static_cast<int64_t>(entries) - 1;
  lengths_ = bytes.data() + kHeader;
  offsets_ = lengths_ + 4 * sequences_;
  boundaries_ = offsets_ + 8 * sequences_;
  offset_unit_ = base::size_of(dtype_);
}

void IndexFile::read_torchnet() {
  format_ = IndexFormat::torchnet;
  auto bytes = file_.bytes();
  constexpr int64_t kHeader = format::kTorchnetHeader;
  const auto size = static_cast<uint64_t>(bytes.size());
  if (std::ssize(bytes) < kHeader) {
    throw FormatError(
        file_.path(), std::ssize(bytes),
        fmt::format("the file ends inside its header; expected at least {} bytes", kHeader));
  }
  const auto word = [&](int64_t at) { return load<uint64_t>(bytes.data() + at); };
  if (word(8) != 1)
    throw FormatError(file_.path(), 8, fmt::format("version {}; expected 1", word(8)));
  dtype_ = dtype_of_code(word(16), 16);
  const int64_t width = base::size_of(dtype_);
  if (word(24) != static_cast<uint64_t>(width)) {
    throw FormatError(file_.path(), 24,
                      fmt::format("elements of {} bytes; expected {}, those of {}", word(24), width,
                                  base::name_of(dtype_)));
  }
  const uint64_t sequences = word(32), dimensions = word(40), entries = word(48);
  // fairseq's writer has no document count: its arrays begin 8 bytes earlier.
  if (sequences < size / 16 && dimensions < size / 8 &&
      size == 48 + 8 * (2 * (sequences + 1) + dimensions)) {
    throw FormatError(file_.path(), 48,
                      "ends after the sizes, as fairseq's variant without documents does (its ids "
                      "are also one too high); expected Megatron's, with document boundaries");
  }
  const uint64_t room = (size - kHeader) / 8;
  if (sequences > room || dimensions > room || entries == 0 || entries > room) {
    throw FormatError(
        file_.path(), 32,
        fmt::format("{} sequences, {} sizes and {} document entries; expected at least 1 entry and "
                    "no more than the file's {} bytes have room for: it is truncated or damaged",
                    sequences, dimensions, entries, size));
  }
  if (const uint64_t expected = kHeader + 8 * (2 * (sequences + 1) + dimensions + entries);
      size != expected) {
    throw FormatError(
        file_.path(), static_cast<int64_t>(std::min(size, expected)),
        fmt::format("the file has {} bytes; {} sequences, {} sizes and {} document entries take {}",
                    size, sequences, dimensions, entries, expected));
  }
  if (dimensions != sequences) {
    throw FormatError(file_.path(), 40,
                      fmt::format("{} sizes for {} sequences; expected one each: ids lie in one "
                                  "dimension",
                                  dimensions, sequences));
  }
  sequences_ = static_cast<int64_t>(sequences);
  documents_ = static_cast<int64_t>(entries) - 1;
  const std::byte* dimension_offsets = bytes.data() + kHeader;
  for (int64_t i = 0; i <= sequences_; ++i) {
    if (auto at = load<int64_t>(dimension_offsets + 8 * i); at != i) {
      throw FormatError(file_.path(), place(dimension_offsets + 8 * i),
                        fmt::format("the sizes of sequence {} start at {}; expected {}: ids lie in "
                                    "one dimension",
                                    i, at, i));
    }
  }
  offsets_ = dimension_offsets + 8 * (sequences_ + 1);
  lengths_ = offsets_ + 8 * (sequences_ + 1);
  boundaries_ = lengths_ + 8 * sequences_;
  length_bytes_ = 8;
}

void IndexFile::check_sequences(int64_t data_bytes, const std::string& data_path) const {
  const bool in_bytes = format_ == IndexFormat::megatron;
  const int64_t width = base::size_of(dtype_);
  int64_t token = 0;
  for (int64_t i = 0; i < sequences_; ++i) {
    const int64_t length = this->length(i);
    if (length < 0) {
      throw FormatError(file_.path(), place(lengths_ + length_bytes_ * i),
                        fmt::format("sequence {} has {} tokens; expected 0 or more", i, length));
    }
    if (auto offset = load<int64_t>(offsets_ + 8 * i); offset != token * offset_unit_) {
      throw FormatError(file_.path(), place(offsets_ + 8 * i),
                        fmt::format("sequence {} starts at {} {} of the .bin file; expected {}, "
                                    "where the one before it ends",
                                    i, in_bytes ? "byte" : "token", offset, token * offset_unit_));
    }
    // Lengths of a damaged 64-bit index may add up beyond 2^63.
    if (length > (int64_t{1} << 59) - token) {
      throw FormatError(file_.path(), place(lengths_ + length_bytes_ * i),
                        fmt::format("sequence {} has {} tokens; expected no more than a file can "
                                    "hold",
                                    i, length));
    }
    token += length;
  }
  if (!in_bytes) {
    if (auto end = load<int64_t>(offsets_ + 8 * sequences_); end != token) {
      throw FormatError(file_.path(), place(offsets_ + 8 * sequences_),
                        fmt::format("the last sequence ends at token {}; expected {}", end, token));
    }
  }
  if (const int64_t expected = token * width; data_bytes != expected) {
    throw FormatError(data_path, std::min(data_bytes, expected),
                      fmt::format("the file has {} bytes; its index speaks of {} ({} tokens of "
                                  "{}): the two do not belong together or one is truncated",
                                  data_bytes, expected, token, base::name_of(dtype_)));
  }
}

void IndexFile::check_boundaries() const {
  int64_t last = 0;
  for (int64_t d = 0; d <= documents_; ++d) {
    auto boundary = load<int64_t>(boundaries_ + 8 * d);
    bool good = d == 0 ? boundary == 0 : boundary >= last && boundary <= sequences_;
    if (!good) {
      throw FormatError(file_.path(), place(boundaries_ + 8 * d),
                        fmt::format("document boundary {} is sequence {}; expected {}", d, boundary,
                                    d == 0 ? "0" : fmt::format("{} to {}", last, sequences_)));
    }
    last = boundary;
  }
  if (last != sequences_) {
    throw FormatError(
        file_.path(), place(boundaries_ + 8 * documents_),
        fmt::format("the last document ends at sequence {}; expected {}, the number of sequences",
                    last, sequences_));
  }
}

int64_t IndexFile::length(int64_t sequence) const {
  return length_bytes_ == 4 ? load<int32_t>(lengths_ + 4 * sequence)
                            : load<int64_t>(lengths_ + 8 * sequence);
}

int64_t IndexFile::begin(int64_t sequence) const {
  return sequence == sequences_ ? tokens_ : load<int64_t>(offsets_ + 8 * sequence) / offset_unit_;
}

int64_t IndexFile::first_sequence(int64_t document) const {
  return load<int64_t>(boundaries_ + 8 * document);
}

}  // namespace trireme::data
