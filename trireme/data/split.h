#pragma once
// Splits of documents into training, validation and test data: "949,50,1", as Megatron-LM cuts
// them.

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::data {

/// Shares "95,5" as numbers; ConfigError unless it is one to three positive numbers.
std::vector<double> parse_split(const std::string& text);

/// Bounds of the parts over `count` documents: 0, ..., count. Shares are normalised; bounds are
/// rounded half to even.
std::vector<int64_t> split_bounds(const std::vector<double>& shares, int64_t count);

}  // namespace trireme::data
