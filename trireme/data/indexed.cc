#include "trireme/data/indexed.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <string_view>

#include "trireme/base/error.h"
#include "trireme/base/hash.h"
#include "trireme/data/index_file.h"
#include "trireme/data/indexed_format.h"
#include "trireme/data/token_file.h"

namespace trireme::data {

using base::DType;
using format::kCodes;

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

Access access_of(const std::string& name) {
  if (name == "mmap") return Access::mmap;
  if (name == "lazy") return Access::lazy;
  if (name == "cached") return Access::cached;
  throw base::ConfigError(
      fmt::format("'{}' is no mode of an indexed dataset; expected mmap, lazy or cached", name));
}

IndexFormat format_of(Access access) {
  return access == Access::mmap ? IndexFormat::megatron : IndexFormat::torchnet;
}

std::string_view name_of(IndexFormat format) {
  return format == IndexFormat::megatron ? "MMIDIDX" : "TNTIDX";
}

struct IndexedDataset::Files {
  Files(const std::string& prefix, Access access)
      : data(prefix + ".bin", access),
        index(prefix + ".idx", data.path(), data.size()),
        index_watch(prefix + ".idx") {}
  TokenFile data;
  IndexFile index;
  Watch index_watch;
};

IndexedDataset::IndexedDataset(const std::string& prefix, Access access)
    : prefix_(existing(prefix)), files_(std::make_shared<Files>(prefix_, access)) {}

IndexFormat IndexedDataset::format() const {
  return files_->index.format();
}
DType IndexedDataset::dtype() const {
  return files_->index.dtype();
}
int64_t IndexedDataset::sequences() const {
  return files_->index.sequences();
}
int64_t IndexedDataset::documents() const {
  return files_->index.documents();
}
int64_t IndexedDataset::tokens() const {
  return files_->index.tokens();
}
int64_t IndexedDataset::length(int64_t sequence) const {
  return files_->index.length(sequence);
}
int64_t IndexedDataset::begin(int64_t sequence) const {
  return files_->index.begin(sequence);
}
int64_t IndexedDataset::first_sequence(int64_t document) const {
  return files_->index.first_sequence(document);
}

int64_t IndexedDataset::document_of(int64_t token) const {
  int64_t low = 0, high = documents();  // the last document that begins at or before the token
  while (high - low > 1) {
    int64_t middle = low + (high - low) / 2;
    (document_begin(middle) <= token ? low : high) = middle;
  }
  return low;
}

std::span<const std::byte> IndexedDataset::bytes(int64_t begin, int64_t count,
                                                 std::vector<std::byte>& scratch) const {
  base::check(begin >= 0 && count >= 0 && begin <= tokens() - count, "{}: tokens {} to {} of {}",
              prefix_, begin, begin + count, tokens());
  files_->index_watch.check();
  const int64_t width = base::size_of(dtype());
  return files_->data.bytes(begin * width, count * width, scratch);
}

void IndexedDataset::read(int64_t begin, int64_t count, int64_t* ids) const {
  thread_local std::vector<std::byte> scratch;
  const std::byte* source = bytes(begin, count, scratch).data();
  format::with_type(dtype(), [&]<class T>(T) {
    // A map starts on a page, as memory does on a word, and the offset is a multiple of the width:
    // aligned.
    const T* typed = reinterpret_cast<const T*>(source);
    std::copy(typed, typed + count, ids);
  });
}

uint64_t IndexedDataset::fingerprint() const {
  constexpr int64_t kBlock = 64 << 10, kBlocks = 64;
  const int64_t size = files_->data.size();
  std::span<const std::byte> index = files_->index.file().bytes();
  uint64_t hash = base::hash_bytes(index.data(), index.size());
  std::vector<std::byte> scratch;
  const int64_t stride = std::max(kBlock, size / kBlocks);
  for (int64_t at = 0; at < size; at += stride) {
    auto block = files_->data.bytes(at, std::min(kBlock, size - at), scratch);
    hash = base::hash_combine(hash, base::hash_bytes(block.data(), block.size()));
  }
  return hash;
}

std::pair<int64_t, int64_t> IndexedDataset::id_range() const {
  constexpr int64_t kStep = 1 << 20;
  if (tokens() == 0) return {0, -1};
  std::pair<int64_t, int64_t> range{std::numeric_limits<int64_t>::max(),
                                    std::numeric_limits<int64_t>::min()};
  std::vector<std::byte> scratch;
  for (int64_t at = 0; at < tokens(); at += kStep) {
    const int64_t count = std::min(kStep, tokens() - at);
    const std::byte* source = bytes(at, count, scratch).data();
    format::with_type(dtype(), [&]<class T>(T) {
      const T* ids = reinterpret_cast<const T*>(source);
      auto [lowest, highest] = std::minmax_element(ids, ids + count);
      range.first = std::min(range.first, static_cast<int64_t>(*lowest));
      range.second = std::max(range.second, static_cast<int64_t>(*highest));
    });
  }
  return range;
}

base::DType common_dtype(base::DType a, base::DType b) {
  if (a == b) return a;
  const auto holds = [](DType wide, DType narrow) {
    bool fits = false;
    format::with_type(wide, [&]<class W>(W) {
      format::with_type(narrow, [&]<class N>(N) {
        fits = std::in_range<W>(std::numeric_limits<N>::min()) &&
               std::in_range<W>(std::numeric_limits<N>::max());
      });
    });
    return fits;
  };
  for (DType wide : {DType::u16, DType::i16, DType::i32})
    if (holds(wide, a) && holds(wide, b)) return wide;
  return DType::i64;
}

base::DType token_dtype(int64_t vocab_size) {
  return vocab_size < 65500 ? DType::u16 : DType::i32;
}

}  // namespace trireme::data
