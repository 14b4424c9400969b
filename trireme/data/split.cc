#include "trireme/data/split.h"

#include <cmath>
#include <cstdlib>

#include "trireme/base/error.h"

namespace trireme::data {

using base::ConfigError;

std::vector<double> parse_split(const std::string& text) {
  std::vector<double> shares;
  for (size_t at = 0; at <= text.size();) {
    size_t comma = std::min(text.find(',', at), text.size());
    std::string word = text.substr(at, comma - at);
    char* end = nullptr;
    double share = std::strtod(word.c_str(), &end);
    if (word.empty() || *end != '\0' || !(share > 0) || !std::isfinite(share) ||
        shares.size() == 3) {
      throw ConfigError(fmt::format(
          "split {}: expected one to three positive numbers (train, valid, test), such as 95,5",
          text));
    }
    shares.push_back(share);
    at = comma + 1;
  }
  return shares;
}

std::vector<int64_t> split_bounds(const std::vector<double>& shares, int64_t count) {
  double sum = 0;
  for (double share : shares) sum += share;
  std::vector<int64_t> bounds{0};
  double before = 0;
  for (double share : shares) {
    before += share / sum;
    bounds.push_back(static_cast<int64_t>(std::nearbyint(before * static_cast<double>(count))));
  }
  return bounds;
}

}  // namespace trireme::data
