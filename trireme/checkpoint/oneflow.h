#pragma once
// OneflowFolder: a state dict as oneflow.save writes it, which LiBai's checkpoints are made of: a
// folder per tensor with its raw bytes (`out`) and its shape and type (`meta`, a protocol buffer as
// text), and a pickle of the names (`pickled_data`); older ones name the folders after the tensors.
// Only bytes that are asked for are read.

#include <map>
#include <memory>
#include <set>
#include <string>

#include "trireme/base/io.h"
#include "trireme/formats/safetensors.h"

namespace trireme::checkpoint {

bool is_oneflow_folder(const std::string& folder);

class OneflowFolder {
 public:
  /// FormatError naming the file for anything that is not as above.
  explicit OneflowFolder(const std::string& folder);
  std::set<std::string> names() const;
  bool contains(const std::string& name) const { return entries_.contains(name); }
  /// With its bytes, row-major, which live as long as this. FormatError when they are not as many
  /// as shape and type say.
  formats::StoredTensor at(const std::string& name);

 private:
  struct Entry {
    std::string folder;
    std::unique_ptr<base::MappedFile> bytes = {};
  };
  std::map<std::string, Entry> entries_;
};

}  // namespace trireme::checkpoint
