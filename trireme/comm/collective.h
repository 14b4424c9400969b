#pragma once
// CollectiveKind: which collective an operation of a group is; its name for messages.

#include <string>

#include "trireme/base/dtype.h"

namespace trireme::comm {

enum class CollectiveKind : uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  all_to_all
};

/// "all_reduce of 12 fp32".
std::string describe(CollectiveKind kind, int64_t count, base::DType dtype);

}  // namespace trireme::comm
