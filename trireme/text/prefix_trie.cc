#include "trireme/text/prefix_trie.h"

#include <algorithm>

namespace trireme::text {

PrefixTrie::PrefixTrie(std::vector<std::pair<std::string_view, int32_t>> keys) {
  std::erase_if(keys, [](const auto& key) { return key.first.empty(); });
  std::stable_sort(keys.begin(), keys.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  struct Span {
    size_t begin, end, depth;  // keys that share their first `depth` bytes
  };
  std::vector<Span> level = {{0, keys.size(), 0}};
  labels_.push_back(0);
  values_.push_back(-1);
  while (!level.empty()) {
    std::vector<Span> next;
    for (Span span : level) {
      // first_ of this node: its children follow all nodes so far.
      first_.push_back(static_cast<uint32_t>(labels_.size()));
      size_t at = span.begin;
      while (at < span.end && keys[at].first.size() == span.depth) ++at;
      while (at < span.end) {
        const auto label = static_cast<uint8_t>(keys[at].first[span.depth]);
        size_t stop = at;
        int32_t value = -1;
        while (stop < span.end && static_cast<uint8_t>(keys[stop].first[span.depth]) == label) {
          if (keys[stop].first.size() == span.depth + 1) value = keys[stop].second;
          ++stop;
        }
        if (span.depth == 0) root_[label] = static_cast<uint32_t>(labels_.size());
        labels_.push_back(label);
        values_.push_back(value);
        next.push_back({at, stop, span.depth + 1});
        at = stop;
      }
    }
    level = std::move(next);
  }
  first_.push_back(static_cast<uint32_t>(labels_.size()));
}

}  // namespace trireme::text
