#include "trireme/kernels/allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>

#include "trireme/base/error.h"

namespace trireme::kernels {
namespace {

struct Counters {
  std::atomic<int64_t> live{0}, peak{0};
  void add(int64_t bytes) {
    int64_t now = live.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    int64_t seen = peak.load(std::memory_order_relaxed);
    while (now > seen && !peak.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {
    }
  }
};

struct alignas(64) Header {
  int32_t size_class;
  int64_t bytes;    // as requested
  Counters* owner;  // of the rank that allocated it, or null
  Header* next;     // in the list of free blocks
};
static_assert(sizeof(Header) == 64);

constexpr size_t kMapped = size_t{1}
                           << 20;  // blocks from here on are mapped, smaller ones come from malloc
constexpr size_t kHugePage = size_t{2} << 20;

// Eight classes per power of two, from 64 bytes: at most an eighth of a block is unused.
constexpr int kSmallest = 6, kClasses = (48 - kSmallest) * 8;
size_t class_size(int size_class) {
  return (size_t{8} + size_class % 8) << (size_class / 8 + kSmallest - 3);
}
int class_of(size_t size) {
  if (size <= (size_t{1} << kSmallest)) return 0;
  int power = std::bit_width(size - 1) - 1;  // size is in (2^power, 2^(power + 1)]
  auto eighths = static_cast<int>((size - 1 - (size_t{1} << power)) >> (power - 3)) + 1;
  return (power - kSmallest) * 8 + eighths;
}

void* map_block(size_t size) {
  // Aligned to a huge page, so that the hint covers the block from its start.
  const size_t slack = size >= kHugePage ? kHugePage : 0;
  void* raw =
      mmap(nullptr, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  if (slack == 0) return raw;
  auto begin = reinterpret_cast<uintptr_t>(raw), aligned = (begin + slack - 1) & ~(slack - 1);
  if (aligned > begin) munmap(raw, aligned - begin);
  if (size_t rest = begin + slack - aligned; rest > 0)
    munmap(reinterpret_cast<void*>(aligned + size), rest);
  madvise(reinterpret_cast<void*>(aligned), size, MADV_HUGEPAGE);  // only a hint
  return reinterpret_cast<void*>(aligned);
}

class CachingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes == 0 ? nullptr : take(bytes);
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }

  Counters* of_rank(int rank) {
    std::lock_guard lock(ranks_mutex_);
    return &ranks_[rank];
  }
  Counters& process() { return process_; }

  void trim() {
    for (int c = 0; c < kClasses; ++c) {
      std::unique_lock lock(lists_[c].mutex);
      Header* block = std::exchange(lists_[c].first, nullptr);
      lock.unlock();
      while (block != nullptr) {
        Header* next = block->next;
        give_back(block, c);
        block = next;
      }
    }
  }

 private:
  struct alignas(64) List {
    std::mutex mutex;
    Header* first = nullptr;
    Header* pop() {
      std::lock_guard lock(mutex);
      Header* block = first;
      if (block != nullptr) first = block->next;
      return block;
    }
  };

  void* take(size_t bytes);
  static void release(void* data);
  static void give_back(Header* block, int size_class) {
    const size_t size = class_size(size_class);
    if (size >= kMapped)
      munmap(block, size);
    else
      std::free(block);
  }

  std::array<List, kClasses> lists_;
  Counters process_;
  std::mutex ranks_mutex_;
  std::map<int, Counters> ranks_;  // addresses are stable
};

// Never destroyed: tensors outlive static objects.
CachingAllocator& allocator() {
  static auto* instance = new CachingAllocator;
  return *instance;
}
thread_local Counters* tagged = nullptr;

void* CachingAllocator::take(size_t bytes) {
  base::check(bytes < (size_t{1} << 47), "a tensor of {} bytes was asked for", bytes);
  const int exact = class_of(bytes + sizeof(Header));
  Header* block = nullptr;
  int size_class = exact;
  // A free block that is up to a quarter larger serves as well, where blocks are large.
  const int last = class_size(exact) >= kMapped ? std::min(exact + 2, kClasses - 1) : exact;
  for (; block == nullptr && size_class <= last; ++size_class) block = lists_[size_class].pop();
  size_class = block != nullptr ? size_class - 1 : exact;
  if (block == nullptr) {
    const size_t size = class_size(exact);
    for (int attempt = 0; block == nullptr && attempt < 2; ++attempt) {
      if (attempt == 1) trim();
      block = static_cast<Header*>(
          size >= kMapped ? map_block(size) : std::aligned_alloc(64, (size + 63) & ~size_t{63}));
    }
    if (block == nullptr)
      throw base::IoError(
          "memory", ENOMEM,
          fmt::format("allocating {} bytes (live: {})", bytes, process_.live.load()));
  }
  block->size_class = size_class;
  block->bytes = static_cast<int64_t>(bytes);
  block->owner = tagged;
  process_.add(block->bytes);
  if (tagged != nullptr) tagged->add(block->bytes);
  return block + 1;
}

void CachingAllocator::release(void* data) {
  if (data == nullptr) return;
  CachingAllocator& self = allocator();
  Header* block = static_cast<Header*>(data) - 1;
  self.process_.live.fetch_sub(block->bytes, std::memory_order_relaxed);
  if (block->owner != nullptr)
    block->owner->live.fetch_sub(block->bytes, std::memory_order_relaxed);
  List& list = self.lists_[block->size_class];
  std::lock_guard lock(list.mutex);
  block->next = list.first;
  list.first = block;
}

Counters& counters() {
  return tagged != nullptr ? *tagged : allocator().process();
}

}  // namespace

void install_caching_allocator() {
  c10::SetCPUAllocator(&allocator());
}

MemoryCounters memory_counters() {
  return {counters().live.load(), counters().peak.load()};
}

void tag_memory(int rank) {
  tagged = allocator().of_rank(rank);
}

std::shared_ptr<void> count_memory(int64_t bytes) {
  Counters* process = &allocator().process();
  Counters* rank = tagged;
  process->add(bytes);
  if (rank != nullptr) rank->add(bytes);
  return {rank, [=](void*) {
            process->live.fetch_sub(bytes, std::memory_order_relaxed);
            if (rank != nullptr) rank->live.fetch_sub(bytes, std::memory_order_relaxed);
          }};
}

void reset_peak() {
  counters().peak.store(counters().live.load());
}

void trim_memory() {
  allocator().trim();
}

}  // namespace trireme::kernels
