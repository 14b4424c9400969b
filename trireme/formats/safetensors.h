#pragma once
// safetensors: Hugging Face's container of named tensors
// (https://github.com/huggingface/safetensors). A file is a 64-bit little-endian header length, a
// JSON header, then the tensors' bytes back to back.
//
// SafetensorsFile maps a file and accepts only what the format allows: whatever lies in it is found
// before a tensor is read. SafetensorsWriter streams: names, types and shapes are known first, the
// data follows tensor by tensor in `order()`; a file equals byte for byte what the Python package
// writes. Neither knows models or ranks.
//
//   SafetensorsWriter writer(path, {{"w", DType::f32, {2, 3}}}, {{"format", "pt"}});
//   writer.write("w", bytes); writer.close();
//   SafetensorsFile(path).at("w").bytes

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/dtype.h"
#include "trireme/base/io.h"
#include "trireme/layout/param_spec.h"

namespace trireme::formats {

struct StoredTensor {
  base::DType dtype = base::DType::f32;
  layout::Shape shape;
  std::span<const std::byte> bytes;  // row-major, little-endian; lives as long as the file's map
};

/// The types of this format that trireme holds, by the format's own names ("F32", "BF16", ...).
std::string_view safetensors_name(base::DType dtype);

/// Elements x bytes per element. FormatError with `where` in front when a dimension is negative or
/// it overflows.
int64_t checked_bytes(const layout::Shape& shape, base::DType dtype, const std::string& where);

class SafetensorsFile {
 public:
  /// Maps and checks the whole header. FormatError: header longer than the file or 100 MB, no JSON
  /// object, duplicate keys, an unknown type, offsets that overlap, leave holes or pass the end,
  /// sizes that are not shape x type, bytes after the last tensor.
  explicit SafetensorsFile(const std::string& path);
  const std::string& path() const { return file_.path(); }
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// FormatError naming the file when there is no such tensor.
  const StoredTensor& at(const std::string& name) const;
  /// Takes a tensor's bytes out of this process's memory until they are looked at again.
  void release(const std::string& name) const;

 private:
  base::MappedFile file_;
  std::map<std::string, StoredTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

struct TensorEntry {
  std::string name;
  base::DType dtype = base::DType::f32;
  layout::Shape shape;
};

/// The order of tensors in a file: wider and "later" types first, as the Python package sorts them,
/// then by name.
bool written_before(const TensorEntry& a, const TensorEntry& b);

class SafetensorsWriter {
 public:
  /// Creates the file and writes its header. Destroyed unclosed, it removes the file. InternalError
  /// when a name appears twice.
  SafetensorsWriter(const std::string& path, std::vector<TensorEntry> entries,
                    const std::map<std::string, std::string>& metadata);
  const std::vector<TensorEntry>& order() const { return order_; }
  /// The next bytes of tensor `name`, which must be the next unfinished one of `order()`.
  void write(const std::string& name, std::span<const std::byte> bytes);
  /// InternalError unless every tensor was written in full; makes the file durable.
  void close();

 private:
  std::vector<TensorEntry> order_;
  base::FileWriter file_;
  size_t next_ = 0;
  int64_t missing_ = 0;  // bytes of order_[next_] still to come
};

}  // namespace trireme::formats
