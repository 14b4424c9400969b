#pragma once
// torch_zip: the files that torch.save writes (pytorch_model.bin): a zip archive of stored records,
// in which a pickle (data.pkl) names tensors over raw storages (data/0, data/1, ...). Here: one
// flat map of names to tensors.
//
// The pickle is read by a small machine that knows tensors, maps and nothing else: no name in a
// file is ever imported or called, and a file that asks for one is refused. Written files load with
// torch.load(weights_only=True).

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/io.h"
#include "trireme/base/json.h"
#include "trireme/formats/safetensors.h"

namespace trireme::formats {

class TorchZipFile {
 public:
  /// Maps the file and checks archive and pickle, not yet the tensors' bytes. FormatError naming path
  /// and place otherwise.
  /// `nested`: of a training checkpoint, with maps in maps and objects, whose tensors are named by their path (pickle.h's
  /// read_tree).
  explicit TorchZipFile(const std::string& path, bool nested = false);
  const std::string& path() const { return file_.path(); }
  std::set<std::string> names() const;
  bool contains(const std::string& name) const { return entries_.contains(name); }
  /// What a nested file holds beside tensors, by path.
  const base::Json& values() const { return values_; }
  /// Type and shape; without bytes. FormatError naming the file when there is no such tensor.
  const StoredTensor& describe(const std::string& name) const { return entry(name).tensor; }
  /// With its bytes, row-major: a strided tensor is copied. FormatError when they do not match their
  /// checksum.
  const StoredTensor& at(const std::string& name) const;
  /// Gives a tensor's memory back; the bytes of `at` are gone.
  void release(const std::string& name) const;

 private:
  struct Record {
    std::span<const std::byte> bytes;
    uint32_t crc = 0;
    int64_t place = 0;  // in the file
    bool checked = false;
  };
  struct Entry {
    StoredTensor tensor;
    Record* storage = nullptr;
    int64_t offset = 0;  // elements of the storage
    layout::Shape stride;
    bool contiguous = false;
    std::vector<std::byte> copy;
  };
  static std::map<std::string, Record> read_archive(std::span<const std::byte> bytes,
                                                    const std::string& path);
  void check(const std::string& name, Record& record) const;
  Entry& entry(const std::string& name) const;

  base::MappedFile file_;
  mutable std::map<std::string, Record> records_;
  mutable std::map<std::string, Entry> entries_;
  base::Json values_;
};

class TorchZipWriter {
 public:
  /// Creates the file with the pickle of all `entries`. Destroyed unclosed, it removes the file.
  TorchZipWriter(const std::string& path, std::vector<TensorEntry> entries);
  /// The whole of the next entry, in the given order.
  void write(const std::string& name, std::span<const std::byte> bytes);
  /// InternalError unless every entry was written; makes the file durable.
  void close();

 private:
  struct Record {
    std::string name;
    uint32_t crc = 0;
    uint64_t size = 0, offset = 0;
  };
  void add(const std::string& name, std::span<const std::byte> bytes);

  std::vector<TensorEntry> entries_;
  base::FileWriter file_;
  std::vector<Record> records_;
  size_t next_ = 0;
};

}  // namespace trireme::formats
