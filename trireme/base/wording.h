#pragma once
// Wording: how messages put numbers and text that a user gave. Not for the messages themselves.

#include <cstdint>
#include <string>
#include <string_view>

namespace trireme::base {

/// "1 stage", "2 stages", "3 micro-batches".
std::string counted(int64_t number, std::string_view noun);

/// The text as a terminal may show it: control characters and bytes that are no UTF-8 as \x1b; of
/// a long text the first 60 bytes and "...".
std::string printable(std::string_view text);

}  // namespace trireme::base
