#include "trireme/comm/collective.h"

#include <fmt/format.h>

namespace trireme::comm {

std::string describe(CollectiveKind kind, int64_t count, base::DType dtype) {
  constexpr const char* kNames[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                    "all_to_all"};
  return fmt::format("{} of {} {}", kNames[static_cast<int>(kind)], count, base::name_of(dtype));
}

}  // namespace trireme::comm
