#include "trireme/layout/param_spec.h"

#include <functional>
#include <numeric>

namespace trireme::layout {

int64_t element_count(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace trireme::layout
