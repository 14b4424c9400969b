#pragma once
// The name that a mistyped one was meant to be, for messages.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::base {

/// The candidate with the smallest edit distance, if it is near enough to be meant.
std::optional<std::string> nearest(std::string_view name,
                                   const std::vector<std::string>& candidates);

}  // namespace trireme::base
