#include "trireme/formats/torch_zip.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/base/pages.h"
#include "trireme/formats/pickle.h"

namespace trireme::formats {
namespace {

using base::FormatError;

// Records of the zip format (PKWARE's APPNOTE): signatures and fixed sizes.
constexpr uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50,
                   kEnd64 = 0x06064b50, kLocator64 = 0x07064b50;
constexpr size_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kLocatorBytes = 20,
                 kEnd64Bytes = 56;
constexpr uint64_t kMax32 = 0xffffffff, kMax16 = 0xffff;
constexpr size_t kAlignment = 64;
constexpr std::string_view kFolder = "archive";

uint32_t crc32(std::span<const std::byte> bytes) {
  static const std::array<std::array<uint32_t, 256>, 8> tables = [] {
    std::array<std::array<uint32_t, 256>, 8> t{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int k = 0; k < 8; ++k) c = c & 1 ? 0xedb88320u ^ (c >> 1) : c >> 1;
      t[0][i] = c;
    }
    for (uint32_t i = 0; i < 256; ++i) {
      for (size_t k = 1; k < 8; ++k) t[k][i] = (t[k - 1][i] >> 8) ^ t[0][t[k - 1][i] & 255];
    }
    return t;
  }();
  uint32_t crc = ~0u;
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {  // eight bytes at a time, a table for each place
    uint64_t word;
    std::memcpy(&word, bytes.data() + i, 8);
    word ^= crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= tables[7 - k][(word >> (8 * k)) & 255];
  }
  for (; i < bytes.size(); ++i)
    crc = tables[0][(crc ^ static_cast<uint32_t>(bytes[i])) & 255] ^ (crc >> 8);
  return ~crc;
}

/// Little-endian fields of a byte range, with bounds.
class Fields {
 public:
  Fields(std::span<const std::byte> bytes, const std::string& path) : bytes_(bytes), path_(path) {}
  uint64_t get(uint64_t at, size_t size) const {
    require(at, size);
    uint64_t value = 0;
    std::memcpy(&value, bytes_.data() + at, size);
    return value;
  }
  std::span<const std::byte> range(uint64_t at, uint64_t size) const {
    require(at, size);
    return bytes_.subspan(at, size);
  }
  [[noreturn]] void refuse(uint64_t at, const std::string& why) const {
    throw FormatError(path_, static_cast<int64_t>(at), why);
  }

 private:
  void require(uint64_t at, uint64_t size) const {
    if (at > bytes_.size() || size > bytes_.size() - at)
      refuse(at, "the archive points past the end of the file");
  }
  std::span<const std::byte> bytes_;
  const std::string& path_;
};

// How a file of PyTorch before 1.6 begins: a pickle of the number 0x1950a86a20f9469cfc6c.
constexpr std::string_view kOldMagic = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";

}  // namespace

/// The archive's records by name.
std::map<std::string, TorchZipFile::Record> TorchZipFile::read_archive(
    std::span<const std::byte> bytes, const std::string& path) {
  Fields file(bytes, path);
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.size() > 2 && text.substr(2).starts_with(kOldMagic)) {
    file.refuse(0,
                "it is in the format before PyTorch 1.6, which is no zip archive; load it with "
                "PyTorch and torch.save it again");
  }
  if (bytes.size() < kEndBytes || file.get(0, 4) != kLocal)
    file.refuse(0, "not a zip archive as torch.save writes since PyTorch 1.6");
  uint64_t end = bytes.size() - kEndBytes, lowest = end > kMax16 ? end - kMax16 : 0;
  while (file.get(end, 4) != kEnd) {
    if (end == lowest)
      file.refuse(bytes.size(), "the archive's directory is missing: the file was cut off");
    --end;
  }
  uint64_t count = file.get(end + 10, 2), at = file.get(end + 16, 4);
  if (end >= kLocatorBytes && file.get(end - kLocatorBytes, 4) == kLocator64) {
    uint64_t end64 = file.get(end - kLocatorBytes + 8, 8);
    if (file.get(end64, 4) != kEnd64)
      file.refuse(end64, "the archive's 64-bit directory is damaged");
    count = file.get(end64 + 32, 8);
    at = file.get(end64 + 48, 8);
  }
  std::map<std::string, Record> records;
  for (uint64_t i = 0; i < count; ++i) {
    if (file.get(at, 4) != kCentral) file.refuse(at, "the archive's directory is damaged");
    uint64_t method = file.get(at + 10, 2), crc = file.get(at + 16, 4),
             stored = file.get(at + 20, 4), size = file.get(at + 24, 4),
             name_size = file.get(at + 28, 2), extra_size = file.get(at + 30, 2),
             comment_size = file.get(at + 32, 2), local = file.get(at + 42, 4);
    auto name_bytes = file.range(at + kCentralBytes, name_size);
    std::string name(reinterpret_cast<const char*>(name_bytes.data()), name_bytes.size());
    // Of a 64-bit record, the fields that do not fit follow one another in the extra field 1.
    for (uint64_t extra = at + kCentralBytes + name_size, last = extra + extra_size;
         extra + 4 <= last;) {
      uint64_t id = file.get(extra, 2), length = file.get(extra + 2, 2), field = extra + 4;
      for (uint64_t* value : {&size, &stored, &local}) {
        if (id != 1 || *value != kMax32) continue;
        *value = file.get(field, 8);
        field += 8;
      }
      extra += 4 + length;
    }
    if (method != 0 || stored != size)
      file.refuse(at, fmt::format("record {} is compressed, which torch.save never does", name));
    if (file.get(local, 4) != kLocal) file.refuse(local, fmt::format("record {} is damaged", name));
    auto data =
        file.range(local + kLocalBytes + file.get(local + 26, 2) + file.get(local + 28, 2), size);
    Record record{data, static_cast<uint32_t>(crc), static_cast<int64_t>(local)};
    if (!records.emplace(name, record).second)
      file.refuse(at, fmt::format("record {} appears twice", name));
    at += kCentralBytes + name_size + extra_size + comment_size;
  }
  return records;
}

TorchZipFile::TorchZipFile(const std::string& path, bool nested) : file_(path) {
  records_ = read_archive(file_.bytes(), path);
  std::string folder;
  for (const auto& [name, record] : records_) {
    size_t slash = name.find('/');
    if (slash != std::string::npos && name.substr(slash) == "/data.pkl")
      folder = name.substr(0, slash + 1);
  }
  auto pickle = records_.find(folder + "data.pkl");
  if (folder.empty() || pickle == records_.end())
    throw FormatError(path + ": the archive has no data.pkl");
  check(pickle->first, pickle->second);
  auto order = records_.find(folder + "byteorder");
  if (order != records_.end() &&
      std::memcmp(order->second.bytes.data(), "little",
                  std::min<size_t>(6, order->second.bytes.size())) != 0) {
    throw FormatError(path + ": its numbers are big-endian, which is not supported");
  }
  std::string_view program(reinterpret_cast<const char*>(pickle->second.bytes.data()),
                           pickle->second.bytes.size());
  const std::string source = path + " (data.pkl)";
  PickledTree tree = nested ? read_tree(program, source) : PickledTree{read_state_dict(program, source), {}};
  values_ = std::move(tree.values);
  for (const auto& [name, tensor] : tree.tensors) {
    std::string where = fmt::format("{}: tensor \"{}\"", path, name);
    int64_t size = base::size_of(tensor.dtype),
            bytes = checked_bytes(tensor.shape, tensor.dtype, where);
    auto record = records_.find(folder + "data/" + tensor.storage);
    if (record == records_.end())
      throw FormatError(fmt::format("{}: its storage {} is missing", where, tensor.storage));
    const int64_t stored = static_cast<int64_t>(record->second.bytes.size()),
                  elements = stored / size;
    if (tensor.storage_elements != elements || elements * size != stored) {
      throw FormatError(fmt::format("{}: its storage has {} bytes, {} elements expected", where,
                                    stored, tensor.storage_elements));
    }
    int64_t count = bytes / size, last = tensor.offset, step = 1;
    bool contiguous = true, valid = tensor.offset >= 0 &&
                                    tensor.stride.size() == tensor.shape.size() &&
                                    count <= elements;
    for (size_t d = tensor.shape.size(); valid && count > 0 && d-- > 0;) {
      int64_t reach = 0;
      valid = tensor.stride[d] >= 0 &&
              !__builtin_mul_overflow(tensor.shape[d] - 1, tensor.stride[d], &reach) &&
              !__builtin_add_overflow(last, reach, &last);
      contiguous = contiguous && (tensor.shape[d] == 1 || tensor.stride[d] == step);
      step *= tensor.shape[d];
    }
    if (!valid || (count > 0 && last >= elements)) {
      throw FormatError(fmt::format(
          "{}: shape [{}], stride [{}] and offset {} leave its storage of {} elements", where,
          fmt::join(tensor.shape, ", "), fmt::join(tensor.stride, ", "), tensor.offset, elements));
    }
    entries_.emplace(name, Entry{{tensor.dtype, tensor.shape, {}}, &record->second, tensor.offset,
                                 tensor.stride, contiguous, {}});
  }
}

void TorchZipFile::check(const std::string& name, Record& record) const {
  if (!record.checked && crc32(record.bytes) != record.crc)
    throw FormatError(path(), record.place,
                      fmt::format("{} does not match its checksum: the file is damaged", name));
  record.checked = true;
}

TorchZipFile::Entry& TorchZipFile::entry(const std::string& name) const {
  auto found = entries_.find(name);
  if (found == entries_.end()) {
    throw FormatError(
        fmt::format("{}: there is no tensor \"{}\" among its {}", path(), name, entries_.size()));
  }
  return found->second;
}

std::set<std::string> TorchZipFile::names() const {
  std::set<std::string> names;
  for (const auto& [name, entry] : entries_) names.insert(name);
  return names;
}

const StoredTensor& TorchZipFile::at(const std::string& name) const {
  Entry& found = entry(name);
  StoredTensor& tensor = found.tensor;
  check(fmt::format("the storage of tensor \"{}\"", name), *found.storage);
  const int64_t count = layout::element_count(tensor.shape), size = base::size_of(tensor.dtype);
  if (count == 0 || !tensor.bytes.empty()) return tensor;
  const std::byte* storage = found.storage->bytes.data();
  if (found.contiguous) {
    tensor.bytes = {storage + found.offset * size, static_cast<size_t>(count * size)};
    return tensor;
  }
  found.copy.resize(static_cast<size_t>(count * size));
  layout::Shape index(tensor.shape.size(), 0);
  for (int64_t i = 0, from = found.offset; i < count; ++i) {
    std::memcpy(found.copy.data() + i * size, storage + from * size, static_cast<size_t>(size));
    for (size_t d = index.size(); d-- > 0;) {
      from += found.stride[d];
      if (++index[d] < tensor.shape[d]) break;
      from -= found.stride[d] * tensor.shape[d];
      index[d] = 0;
    }
  }
  tensor.bytes = found.copy;
  return tensor;
}

void TorchZipFile::release(const std::string& name) const {
  Entry& found = entry(name);
  found.tensor.bytes = {};
  std::vector<std::byte>().swap(found.copy);
  base::release_pages(found.storage->bytes);
}

namespace {

void append(std::string& out, uint64_t value, size_t bytes) {
  out.append(reinterpret_cast<const char*>(&value), bytes);
}

std::span<const std::byte> as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace

TorchZipWriter::TorchZipWriter(const std::string& path, std::vector<TensorEntry> entries)
    : entries_(std::move(entries)), file_(path, base::FileWriter::Caching::bypassed) {
  add("data.pkl", as_bytes(write_state_dict(entries_)));
  add("byteorder", as_bytes("little"));
}

void TorchZipWriter::add(const std::string& name, std::span<const std::byte> bytes) {
  Record record{fmt::format("{}/{}", kFolder, name), crc32(bytes), bytes.size(),
                static_cast<uint64_t>(file_.bytes_written())};
  bool wide = record.size >= kMax32;
  std::string header;
  append(header, kLocal, 4);
  append(header, wide ? 45 : 20, 2);  // version needed
  append(header, 0, 2 + 2 + 2);       // flags, method stored, time
  append(header, 0x21, 2);            // date: 1 January 1980
  append(header, record.crc, 4);
  append(header, wide ? kMax32 : record.size, 4);
  append(header, wide ? kMax32 : record.size, 4);
  append(header, record.name.size(), 2);
  std::string extra;
  if (wide) {
    append(extra, 1, 2);
    append(extra, 16, 2);
    append(extra, record.size, 8);
    append(extra, record.size, 8);
  }
  // Padding, in an extra field of its own as PyTorch does it, lets the data start on a multiple
  // of 64.
  uint64_t start = record.offset + header.size() + 2 + record.name.size() + extra.size() + 4;
  size_t padding = (kAlignment - start % kAlignment) % kAlignment;
  append(extra, 0x4246, 2);
  append(extra, padding, 2);
  extra.append(padding, 'Z');
  append(header, extra.size(), 2);
  file_.write(header);
  file_.write(record.name);
  file_.write(extra);
  file_.write(bytes.data(), bytes.size());
  records_.push_back(std::move(record));
}

void TorchZipWriter::write(const std::string& name, std::span<const std::byte> bytes) {
  base::check(next_ < entries_.size() && entries_[next_].name == name,
              "tensor {} written out of order", name);
  int64_t expected = checked_bytes(entries_[next_].shape, entries_[next_].dtype, name);
  base::check(static_cast<int64_t>(bytes.size()) == expected, "tensor {} has {} bytes of {}", name,
              bytes.size(), expected);
  add(fmt::format("data/{}", next_++), bytes);
}

void TorchZipWriter::close() {
  base::check(next_ == entries_.size(), "{} of {} tensors were written", next_, entries_.size());
  add("version", as_bytes("3\n"));
  uint64_t start = static_cast<uint64_t>(file_.bytes_written());
  for (const Record& record : records_) {
    bool wide_size = record.size >= kMax32, wide_offset = record.offset >= kMax32;
    std::string extra, header;
    if (wide_size) append(extra, record.size, 8), append(extra, record.size, 8);
    if (wide_offset) append(extra, record.offset, 8);
    append(header, kCentral, 4);
    append(header, extra.empty() ? 20 : 45, 2);  // version made by
    append(header, extra.empty() ? 20 : 45, 2);  // version needed
    append(header, 0, 2 + 2 + 2);
    append(header, 0x21, 2);
    append(header, record.crc, 4);
    append(header, wide_size ? kMax32 : record.size, 4);
    append(header, wide_size ? kMax32 : record.size, 4);
    append(header, record.name.size(), 2);
    append(header, extra.empty() ? 0 : extra.size() + 4, 2);
    append(header, 0, 2 + 2 + 2);  // comment, disk, internal attributes
    append(header, 0, 4);          // external attributes
    append(header, wide_offset ? kMax32 : record.offset, 4);
    header += record.name;
    if (!extra.empty()) append(header, 1, 2), append(header, extra.size(), 2);
    file_.write(header + extra);
  }
  uint64_t end = static_cast<uint64_t>(file_.bytes_written()), size = end - start,
           count = records_.size();
  std::string tail;
  if (count >= kMax16 || start >= kMax32 || size >= kMax32) {
    append(tail, kEnd64, 4);
    append(tail, kEnd64Bytes - 12, 8);
    append(tail, 45, 2);
    append(tail, 45, 2);
    append(tail, 0, 8);  // disks
    append(tail, count, 8);
    append(tail, count, 8);
    append(tail, size, 8);
    append(tail, start, 8);
    append(tail, kLocator64, 4);
    append(tail, 0, 4);
    append(tail, end, 8);
    append(tail, 1, 4);
  }
  append(tail, kEnd, 4);
  append(tail, 0, 4);  // disks
  append(tail, std::min(count, kMax16), 2);
  append(tail, std::min(count, kMax16), 2);
  append(tail, std::min(size, kMax32), 4);
  append(tail, std::min(start, kMax32), 4);
  append(tail, 0, 2);
  file_.write(tail);
  file_.close();
}

}  // namespace trireme::formats
