#pragma once
// The median of measured values: what one slow run does not move.

#include <algorithm>
#include <vector>

namespace trireme::base {

/// The upper one of the two in the middle where their number is even; 0 of none.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace trireme::base
