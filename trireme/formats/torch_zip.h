#pragma once
// torch_zip: the files that torch.save writes (pytorch_model.bin): a zip archive of stored records,
// in which a pickle (data.pkl) names tensors over raw storages (data/0, data/1, ...). Here: one
// flat map of names to tensors.
//
// The pickle is read by a small machine that knows tensors, maps and nothing else: no name in a
// file is ever imported or called, and a file that asks for one is refused. Written files load with
// torch.load(weights_only=True).

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "trireme/base/io.h"
#include "trireme/formats/safetensors.h"

namespace trireme::formats {

class TorchZipFile {
 public:
  /// Maps the file and checks archive, checksums and pickle. FormatError naming path and place
  /// otherwise.
  explicit TorchZipFile(const std::string& path);
  const std::string& path() const { return file_.path(); }
  /// Row-major; a strided tensor was copied.
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  /// FormatError naming the file when there is no such tensor.
  const StoredTensor& at(const std::string& name) const;

 private:
  base::MappedFile file_;
  std::map<std::string, StoredTensor> tensors_;
  std::deque<std::vector<std::byte>> copies_;
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
