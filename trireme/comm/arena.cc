#include "trireme/comm/arena.h"

#include "trireme/base/error.h"

namespace trireme::comm {

Arena::Arena(std::shared_ptr<Segment> segment, int rank)
    : segment_(std::move(segment)), rank_(rank) {
  free_[segment_->arena_begin(rank)] = segment_->arena_size();
}

std::byte* Arena::alloc(size_t bytes) {
  std::lock_guard lock(mutex_);
  for (uint64_t block = segment_->rank(rank_).returned.exchange(0); block != 0;) {
    uint64_t next = segment_->at<Link>(block)->next;
    release(block);
    block = next;
  }
  // Whole pages for large blocks, so that they do not share cache lines or pages with small ones.
  uint64_t unit = bytes < 65536 ? 64 : 4096;
  uint64_t need = std::max<uint64_t>((bytes + unit - 1) / unit * unit, unit);
  for (auto [begin, size] : free_) {
    uint64_t start = (begin + unit - 1) / unit * unit, end = begin + size;
    if (start + need > end) continue;
    free_.erase(begin);
    if (start > begin) free_[begin] = start - begin;
    if (end > start + need) free_[start + need] = end - start - need;
    used_[start] = need;
    return segment_->at(start);
  }
  throw base::CommError(fmt::format(
      "rank {}: no room for {} bytes in the {} GiB of shared memory of a rank; messages "
      "are sent faster than their peers receive them",
      rank_, bytes, segment_->arena_size() >> 30));
}

void Arena::free(std::byte* block) {
  std::lock_guard lock(mutex_);
  release(segment_->offset_of(block));
}

void Arena::release(uint64_t offset) {
  auto block = used_.find(offset);
  base::check(block != used_.end(), "a block at {} was freed twice", offset);
  auto [at, _] = free_.emplace(block->first, block->second);
  used_.erase(block);
  if (auto next = std::next(at); next != free_.end() && at->first + at->second == next->first) {
    at->second += next->second;
    free_.erase(next);
  }
  if (at != free_.begin())
    if (auto before = std::prev(at); before->first + before->second == at->first) {
      before->second += at->second;
      free_.erase(at);
    }
}

}  // namespace trireme::comm
