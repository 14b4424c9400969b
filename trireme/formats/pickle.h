#pragma once
// pickle: the part of Python's pickle format that a state dict of PyTorch uses, read without
// executing anything.
//
// A pickle is a program for a stack machine. This one holds numbers, strings, tuples, lists and
// maps; of the names that a pickle may import it knows the handful that make tensors, and refuses
// every other.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/formats/safetensors.h"

namespace trireme::formats {

/// A tensor as the pickle describes it: a strided view of a storage record.
struct PickledTensor {
  base::DType dtype = base::DType::f32;
  std::string storage;  // record's name below data/
  int64_t storage_elements = 0;
  int64_t offset = 0;  // elements
  layout::Shape shape, stride;
};

/// Reads a pickled map of names to tensors. FormatError naming `source` and the byte for anything
/// else, above all for a pickle that imports what makes no tensor.
std::map<std::string, PickledTensor> read_state_dict(std::string_view pickle,
                                                     const std::string& source);

/// What a whole training checkpoint holds: tensors by their path through maps and objects' attributes
/// ("model.embedding.weight"), and so numbers, texts and truth values.
struct PickledTree {
  std::map<std::string, PickledTensor> tensors;
  base::Json values;
};
/// Reads a pickled map of anything. Objects of whatever class are maps of their attributes: no name is imported and nothing
/// is called. Lists, tuples and bytes are left out. FormatError as above.
PickledTree read_tree(std::string_view pickle, const std::string& source);

/// The pickle (protocol 2) of a map of names to contiguous tensors, the i-th over storage record i.
std::string write_state_dict(const std::vector<TensorEntry>& entries);

}  // namespace trireme::formats
