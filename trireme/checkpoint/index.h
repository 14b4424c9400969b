#pragma once
// Index: which file holds which part of each logical tensor (index.json of a split checkpoint).
// Pure data.
//
// A part is the elements [flat.begin, flat.end) of a slice of the tensor, stored under the tensor's
// name in its file: with the slice's shape when the part is the whole slice, else with one
// dimension.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "trireme/base/dtype.h"
#include "trireme/base/json.h"
#include "trireme/layout/slices.h"

namespace trireme::checkpoint {

struct StoredPart {
  std::string file;  // name within the folder
  layout::Slice slice;
  layout::Range flat;
};

struct LogicalTensor {
  base::DType dtype = base::DType::f32;
  layout::Shape shape;
  bool optimizer = false;  // else a parameter
  std::vector<StoredPart> parts;
};

using Index = std::map<std::string, LogicalTensor>;

/// The shape under which a part is stored.
layout::Shape stored_shape(const layout::Slice& slice, const layout::Range& flat);

std::string to_text(const Index& index);
/// FormatError naming `source` and the tensor: ranges outside of the shape, parts that do not add
/// up.
Index index_from_text(const std::string& text, const std::string& source);

/// JSON of a slice: per dimension a list of [begin, end].
base::Json to_json(const layout::Slice& slice);
layout::Slice slice_from_json(const base::Json& json);

/// Visits the elements that two parts of one tensor share, as runs of offsets into each part.
void for_each_shared(const layout::Slice& from_slice, const layout::Range& from,
                     const layout::Slice& to_slice, const layout::Range& to,
                     const layout::Shape& shape, const std::function<void(layout::Overlap)>& visit);

}  // namespace trireme::checkpoint
