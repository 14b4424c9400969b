#pragma once
// PrefixTrie: finds all keys that a text begins with, the shortest first. Keys are bytes.

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::text {

class PrefixTrie {
 public:
  /// Keys with their values (not negative); of equal keys the last one counts. Empty keys are left
  /// out.
  explicit PrefixTrie(std::vector<std::pair<std::string_view, int32_t>> keys);

  /// Calls `use(length, value)` for each key at the beginning of `text`.
  template <class Use>
  void for_each_prefix(std::string_view text, const Use& use) const {
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      node = child(node, static_cast<uint8_t>(text[i]));
      if (node == 0) return;
      if (values_[node] >= 0) use(i + 1, values_[node]);
    }
  }
  /// Length and value of the longest key that `text` begins with; {0, -1} where there is none.
  std::pair<size_t, int32_t> longest(std::string_view text) const {
    std::pair<size_t, int32_t> best{0, -1};
    for_each_prefix(text, [&](size_t length, int32_t value) { best = {length, value}; });
    return best;
  }

 private:
  // 0: there is none (the root is nobody's child).
  uint32_t child(uint32_t node, uint8_t label) const {
    if (node == 0) return root_[label];
    uint32_t begin = first_[node], end = first_[node + 1];
    while (end - begin > 8) {
      const uint32_t middle = (begin + end) / 2;
      if (labels_[middle] <= label) {
        begin = middle;
      } else {
        end = middle;
      }
    }
    for (; begin < end; ++begin) {
      if (labels_[begin] == label) return begin;
    }
    return 0;
  }

  // Nodes in breadth-first order; the children of one lie side by side, by label.
  uint32_t root_[256] = {};
  std::vector<uint8_t> labels_;
  std::vector<uint32_t> first_;  // one more at the end
  std::vector<int32_t> values_;
};

}  // namespace trireme::text
