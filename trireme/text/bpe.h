#pragma once
// Bpe: byte-pair encoding of one word. Starts from the ids of the word's bytes and merges, again
// and again, the neighbours whose pair has the lowest rank, the leftmost first.
//
// It knows ids and ranks only; what a word is and how tokens are written is the tokenizer's
// business.

#include <array>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace trireme::text {

/// One merge; its rank is its place in the list.
struct MergeRule {
  int32_t left = 0, right = 0, result = 0;
};

class Bpe {
 public:
  /// `byte_ids[b]`: the id of byte b, -1 where the vocabulary lacks it. Of equal pairs the last one
  /// counts.
  Bpe(const std::array<int32_t, 256>& byte_ids, const std::vector<MergeRule>& merges);

  /// Appends the ids of a word. ConfigError for a byte that the vocabulary lacks. O(n log n) for
  /// any word.
  void encode(std::string_view word, std::vector<int32_t>& ids) const;

  /// A token and the bytes that it covers.
  struct Symbol {
    int32_t id = 0;
    uint32_t length = 0;
  };
  /// Whether to leave a merge out this time.
  using Skip = std::function<bool()>;
  /// Merges symbols in place. O(n log n). With `skip`, a merge that it says so of waits until the
  /// next one is done (Provilkov et al., "BPE-dropout", 2020).
  void merge(std::vector<Symbol>& symbols, const Skip& skip = nullptr) const;

 private:
  static constexpr uint32_t kNoRank = UINT32_MAX;
  struct Entry {
    uint64_t pair = UINT64_MAX;
    uint32_t rank = kNoRank;
    int32_t result = -1;
  };
  const Entry& find(int32_t left, int32_t right) const;
  int32_t byte_id(char byte) const;
  void encode_short(std::string_view word, std::vector<int32_t>& ids) const;
  void encode_long(std::string_view word, std::vector<int32_t>& ids) const;

  std::array<int32_t, 256> byte_ids_;
  std::vector<Entry> table_;  // open addressing, linear probing, at most half full
  int shift_ = 0;
  std::vector<int32_t> results_;  // by rank
};

}  // namespace trireme::text
