#pragma once
// Arena: one rank's part of the segment, from which that rank alone allocates. What is free and
// what is in use is known to the rank only, outside of the segment, so a killed peer cannot damage
// it. Other ranks hand blocks back through the rank's `returned` list. Thread-safe.

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include "trireme/comm/segment.h"

namespace trireme::comm {

class Arena {
 public:
  Arena(std::shared_ptr<Segment> segment, int rank);
  /// A block of at least `bytes`, aligned to 64; large ones to a page. CommError when the arena is
  /// full.
  std::byte* alloc(size_t bytes);
  void free(std::byte* block);

 private:
  void release(uint64_t offset);
  std::shared_ptr<Segment> segment_;
  int rank_;
  std::mutex mutex_;
  std::map<uint64_t, uint64_t> free_, used_;  // offset -> bytes
};

/// Gives a block of `owner`'s arena back from any rank. The block starts with a Link.
inline void give_back(const Segment& segment, int owner, void* block) {
  push(segment, segment.rank(owner).returned, segment.offset_of(block));
}

}  // namespace trireme::comm
