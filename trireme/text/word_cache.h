#pragma once
// WordCache: the ids of words seen lately. One slot a hash value and a newer word takes the slot,
// so its size is bounded. Not thread-safe: an encoding takes one from the pool for as long as it
// runs.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/hash.h"

namespace trireme::text {

class WordCache {
  static_assert(std::endian::native == std::endian::little);

 public:
  /// Appends the ids of `word`; calls `encode(word, ids)`, which appends them, where the cache does
  /// not know them. Memory from the word on up to `readable` may be read.
  template <class Encode>
  void append(std::string_view word, const char* readable, std::vector<int32_t>& ids,
              const Encode& encode) {
    if (word.size() <= kShortBytes) {
      append_short(word, readable, ids, encode);
    } else if (word.size() <= kLongBytes) {
      append_long(word, ids, encode);
    } else {
      encode(word, ids);
    }
  }

 private:
  static constexpr size_t kShortBytes = 15, kLongBytes = 256, kInlineIds = 11;
  static constexpr int kShortBits = 15, kLongBits = 12;
  // A word of up to 15 bytes and its length as two integers; one cache line in all.
  struct alignas(64) ShortSlot {
    uint64_t key[2] = {0, 0};
    int32_t ids[kInlineIds] = {};
    int32_t count = 0;
  };
  struct LongSlot {
    std::string word;
    std::vector<int32_t> ids;
  };

  static uint64_t low_bytes(size_t count) {
    return count == 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * count)) - 1;
  }

  template <class Encode>
  void append_short(std::string_view word, const char* readable, std::vector<int32_t>& ids,
                    const Encode& encode) {
    uint64_t key[2] = {0, 0};
    if (readable - word.data() >= 16) {  // a copy of known size is far cheaper
      std::memcpy(key, word.data(), sizeof key);
      const size_t in_first = std::min<size_t>(word.size(), 8);
      key[0] &= low_bytes(in_first);
      key[1] &= low_bytes(word.size() - in_first);
    } else {
      std::memcpy(key, word.data(), word.size());
    }
    key[1] |= static_cast<uint64_t>(word.size() + 1) << 56;
    const uint64_t hash = (key[0] ^ (key[1] * 0xC2B2AE3D27D4EB4Fu)) * 0x9E3779B97F4A7C15u;
    ShortSlot& slot = short_[hash >> (64 - kShortBits)];
    if (slot.key[0] == key[0] && slot.key[1] == key[1]) {
      ids.insert(ids.end(), slot.ids, slot.ids + slot.count);
      return;
    }
    const size_t before = ids.size();
    encode(word, ids);
    const size_t count = ids.size() - before;
    if (count > kInlineIds) return;
    slot.key[0] = key[0];
    slot.key[1] = key[1];
    slot.count = static_cast<int32_t>(count);
    std::memcpy(slot.ids, ids.data() + before, count * sizeof(int32_t));
  }

  template <class Encode>
  void append_long(std::string_view word, std::vector<int32_t>& ids, const Encode& encode) {
    LongSlot& slot = long_[base::hash_text(word) >> (64 - kLongBits)];
    if (slot.word != word) {
      slot.ids.clear();
      slot.word.clear();
      encode(word, slot.ids);
      slot.word = word;
    }
    ids.insert(ids.end(), slot.ids.begin(), slot.ids.end());
  }

  std::vector<ShortSlot> short_ = std::vector<ShortSlot>(size_t{1} << kShortBits);
  std::vector<LongSlot> long_ = std::vector<LongSlot>(size_t{1} << kLongBits);
};

/// Hands caches to concurrent encodings and keeps them warm in between.
class WordCachePool {
 public:
  class Lease {
   public:
    explicit Lease(WordCachePool& pool) : pool_(pool) {
      std::lock_guard lock(pool_.mutex_);
      if (pool_.free_.empty()) {
        cache_ = std::make_unique<WordCache>();
      } else {
        cache_ = std::move(pool_.free_.back());
        pool_.free_.pop_back();
      }
    }
    ~Lease() {
      std::lock_guard lock(pool_.mutex_);
      pool_.free_.push_back(std::move(cache_));
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    WordCache& cache() const { return *cache_; }

   private:
    WordCachePool& pool_;
    std::unique_ptr<WordCache> cache_;
  };

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<WordCache>> free_;
};

}  // namespace trireme::text
