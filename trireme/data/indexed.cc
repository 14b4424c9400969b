#include "trireme/data/indexed.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "trireme/base/error.h"
#include "trireme/base/hash.h"
#include "trireme/data/indexed_format.h"

namespace trireme::data {

using base::DType;
using base::FormatError;
using format::kCodes;
using format::kHeaderBytes;
using format::kMagic;
using format::load;

namespace format {

std::string without_ending(const std::string& prefix) {
  for (std::string_view ending : {".idx", ".bin"}) {
    if (prefix.ends_with(ending)) return prefix.substr(0, prefix.size() - ending.size());
  }
  return prefix;
}

uint8_t code_of(DType dtype) {
  for (const Code& c : kCodes) {
    if (c.dtype == dtype) return c.code;
  }
  throw base::ConfigError(fmt::format(
      "an indexed dataset cannot hold {}; use uint8, int8, int16, int32, int64 or uint16",
      base::name_of(dtype)));
}

}  // namespace format

namespace {

/// `prefix` without its ending, once both files are there.
std::string existing(const std::string& given) {
  namespace fs = std::filesystem;
  std::string prefix = format::without_ending(given);
  for (const char* ending : {".idx", ".bin"}) {
    if (fs::exists(prefix + ending)) continue;
    std::string meant;
    for (const char* part : {"_train", "_valid", "_test"}) {
      if (fs::exists(prefix + part + ".idx"))
        meant += fmt::format("{}{}{}", meant.empty() ? "" : ", ", prefix, part);
    }
    throw base::ConfigError(fmt::format(
        "dataset {0}: there is no file {0}{1}; expected an indexed dataset, {0}.idx and {0}.bin. "
        "{2}",
        prefix, ending,
        meant.empty()
            ? fmt::format("`trireme preprocess --tokenizer DIR --input FILES --out {}` makes one",
                          prefix)
            : fmt::format("There is {}: name that", meant)));
  }
  return prefix;
}

}  // namespace

void refuse_existing(const std::string& prefix, std::string_view remedy) {
  for (const char* ending : {".idx", ".bin"}) {
    std::string path = format::without_ending(prefix) + ending;
    if (std::filesystem::exists(path))
      throw base::ConfigError(fmt::format("{} exists already; {}", path, remedy));
  }
}

IndexedDataset::IndexedDataset(const std::string& prefix)
    : prefix_(existing(prefix)), index_(prefix_ + ".idx"), data_(prefix_ + ".bin") {
  const std::byte* index = index_.bytes().data();
  check_header();
  uint8_t code = load<uint8_t>(index + 17);
  auto known = std::find_if(kCodes.begin(), kCodes.end(),
                            [&](const format::Code& c) { return c.code == code; });
  if (known == kCodes.end()) {
    throw FormatError(
        index_.path(), 17,
        fmt::format(
            "dtype code {} is no integer type; expected 1 (uint8), 2 (int8), 3 (int16), 4 (int32), "
            "5 (int64) or 8 (uint16)",
            code));
  }
  dtype_ = known->dtype;
  check_sizes();
  sequences_ = load<int64_t>(index + 18);
  documents_ = load<int64_t>(index + 26) - 1;
  lengths_ = index + kHeaderBytes;
  pointers_ = lengths_ + 4 * sequences_;
  boundaries_ = pointers_ + 8 * sequences_;
  check_arrays();
  tokens_ = static_cast<int64_t>(data_.bytes().size()) / base::size_of(dtype_);
}

void IndexedDataset::check_header() const {
  auto bytes = index_.bytes();
  std::string_view start(reinterpret_cast<const char*>(bytes.data()),
                         std::min(bytes.size(), kMagic.size()));
  if (start.substr(0, 6) == "TNTIDX") {
    throw FormatError(
        index_.path(), 0,
        "an index of the older TNTIDX format; expected MMIDIDX: write it again as \"mmap\"");
  }
  if (start != kMagic.substr(0, start.size()) || start.empty()) {
    throw FormatError(
        index_.path(), 0,
        fmt::format("starts with \"{}\"; expected MMIDIDX and two zero bytes: this is no "
                    "index of an indexed dataset",
                    fmt::format("{:02x}",
                                fmt::join(std::span(reinterpret_cast<const uint8_t*>(start.data()),
                                                    start.size()),
                                          " "))));
  }
  if (static_cast<int64_t>(bytes.size()) < kHeaderBytes) {
    throw FormatError(
        index_.path(), static_cast<int64_t>(bytes.size()),
        fmt::format("the file ends inside its header; expected at least {} bytes", kHeaderBytes));
  }
  if (auto version = load<uint64_t>(bytes.data() + 9); version != 1) {
    throw FormatError(index_.path(), 9, fmt::format("version {}; expected 1", version));
  }
}

void IndexedDataset::check_sizes() const {
  auto bytes = index_.bytes();
  uint64_t size = bytes.size(), room = size - kHeaderBytes;
  auto sequences = load<uint64_t>(bytes.data() + 18), entries = load<uint64_t>(bytes.data() + 26);
  if (sequences <= (size - 26) / 12 && size == 26 + 12 * sequences) {
    throw FormatError(
        index_.path(), 26,
        "ends after the offsets, as fairseq's variant without documents does; expected "
        "Megatron's, with a document count and boundaries");
  }
  if (sequences > room / 12) {
    throw FormatError(
        index_.path(), 18,
        fmt::format("{} sequences need at least {} x 12 bytes after the header; the file "
                    "has {}: it is truncated or damaged",
                    sequences, sequences, room));
  }
  if (entries == 0 || entries > (room - 12 * sequences) / 8) {
    throw FormatError(
        index_.path(), 26,
        fmt::format("{} document entries; expected at least 1 and at most the {} that the "
                    "file has room for: it is truncated or damaged",
                    entries, (room - 12 * sequences) / 8));
  }
  uint64_t expected = kHeaderBytes + 12 * sequences + 8 * entries;
  if (size == expected + sequences && sequences > 0) {
    throw FormatError(index_.path(), static_cast<int64_t>(expected),
                      "has a mode for each sequence (a multimodal dataset); expected text only");
  }
  if (size != expected) {
    throw FormatError(
        index_.path(), static_cast<int64_t>(std::min(size, expected)),
        fmt::format("the file has {} bytes; {} sequences and {} document entries take {}", size,
                    sequences, entries, expected));
  }
}

void IndexedDataset::check_arrays() const {
  const int64_t width = base::size_of(dtype_);
  auto place = [&](const std::byte* at) { return at - index_.bytes().data(); };
  int64_t offset = 0;
  for (int64_t i = 0; i < sequences_; ++i) {
    auto length = load<int32_t>(lengths_ + 4 * i);
    if (length < 0) {
      throw FormatError(index_.path(), place(lengths_ + 4 * i),
                        fmt::format("sequence {} has {} tokens; expected 0 or more", i, length));
    }
    if (auto pointer = load<int64_t>(pointers_ + 8 * i); pointer != offset) {
      throw FormatError(index_.path(), place(pointers_ + 8 * i),
                        fmt::format("sequence {} starts at byte {} of the .bin file; expected {}, "
                                    "where the one before it ends",
                                    i, pointer, offset));
    }
    offset += length * width;
  }
  if (auto size = static_cast<int64_t>(data_.bytes().size()); size != offset) {
    throw FormatError(data_.path(), std::min(size, offset),
                      fmt::format("the file has {} bytes; its index speaks of {} ({} tokens of "
                                  "{}): the two do not belong "
                                  "together or one is truncated",
                                  size, offset, offset / width, base::name_of(dtype_)));
  }
  int64_t last = 0;
  for (int64_t d = 0; d <= documents_; ++d) {
    auto boundary = load<int64_t>(boundaries_ + 8 * d);
    bool good = d == 0 ? boundary == 0 : boundary >= last && boundary <= sequences_;
    if (!good) {
      throw FormatError(index_.path(), place(boundaries_ + 8 * d),
                        fmt::format("document boundary {} is sequence {}; expected {}", d, boundary,
                                    d == 0 ? "0" : fmt::format("{} to {}", last, sequences_)));
    }
    last = boundary;
  }
  if (last != sequences_) {
    throw FormatError(
        index_.path(), place(boundaries_ + 8 * documents_),
        fmt::format("the last document ends at sequence {}; expected {}, the number of sequences",
                    last, sequences_));
  }
}

int64_t IndexedDataset::length(int64_t sequence) const {
  return load<int32_t>(lengths_ + 4 * sequence);
}

int64_t IndexedDataset::begin(int64_t sequence) const {
  return sequence == sequences_ ? tokens_
                                : load<int64_t>(pointers_ + 8 * sequence) / base::size_of(dtype_);
}

int64_t IndexedDataset::first_sequence(int64_t document) const {
  return load<int64_t>(boundaries_ + 8 * document);
}

int64_t IndexedDataset::document_of(int64_t token) const {
  int64_t low = 0, high = documents_;  // the last document that begins at or before the token
  while (high - low > 1) {
    int64_t middle = low + (high - low) / 2;
    (document_begin(middle) <= token ? low : high) = middle;
  }
  return low;
}

std::span<const std::byte> IndexedDataset::bytes(int64_t begin, int64_t count) const {
  base::check(begin >= 0 && count >= 0 && begin <= tokens_ - count, "{}: tokens {} to {} of {}",
              prefix_, begin, begin + count, tokens_);
  const int64_t width = base::size_of(dtype_);
  return data_.bytes().subspan(begin * width, count * width);
}

void IndexedDataset::read(int64_t begin, int64_t count, int64_t* ids) const {
  const std::byte* source = bytes(begin, count).data();
  format::with_type(dtype_, [&]<class T>(T) {
    // A map starts on a page and the offset is a multiple of the width: aligned.
    const T* typed = reinterpret_cast<const T*>(source);
    std::copy(typed, typed + count, ids);
  });
}

uint64_t IndexedDataset::fingerprint() const {
  constexpr size_t kBlock = 64 << 10, kBlocks = 64;
  std::span<const std::byte> index = index_.bytes(), ids = data_.bytes();
  uint64_t hash = base::hash_bytes(index.data(), index.size());
  size_t stride = std::max(kBlock, ids.size() / kBlocks);
  for (size_t at = 0; at < ids.size(); at += stride)
    hash = base::hash_combine(hash,
                              base::hash_bytes(ids.data() + at, std::min(kBlock, ids.size() - at)));
  return hash;
}

std::pair<int64_t, int64_t> IndexedDataset::id_range() const {
  std::pair<int64_t, int64_t> range{0, -1};
  if (tokens_ == 0) return range;
  format::with_type(dtype_, [&]<class T>(T) {
    const T* ids = reinterpret_cast<const T*>(data_.bytes().data());
    auto [lowest, highest] = std::minmax_element(ids, ids + tokens_);
    range = {static_cast<int64_t>(*lowest), static_cast<int64_t>(*highest)};
  });
  return range;
}

base::DType token_dtype(int64_t vocab_size) {
  return vocab_size < 65500 ? DType::u16 : DType::i32;
}

}  // namespace trireme::data
