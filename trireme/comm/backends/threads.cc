#include "trireme/comm/backends/threads.h"

#include <numeric>

#include "trireme/base/error.h"
#include "trireme/comm/backends/segment_backend.h"

namespace trireme::comm {

std::vector<std::unique_ptr<Backend>> make_thread_backends(int size,
                                                           std::chrono::milliseconds timeout) {
  if (size < 1) throw base::ConfigError(fmt::format("{} ranks; expected at least 1", size));
  std::vector<int> here(size);
  std::iota(here.begin(), here.end(), 0);
  auto segment = Segment::create(size, here, true);
  std::vector<std::unique_ptr<Backend>> backends;
  for (int r = 0; r < size; ++r)
    backends.push_back(std::make_unique<SegmentBackend>(segment, r, timeout));
  return backends;
}

}  // namespace trireme::comm
