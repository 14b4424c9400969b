#pragma once
// A caching CPU allocator with counters. Memory that glibc maps and unmaps every step costs a third
// of a CPU training step in page faults; here freed blocks are kept by size class and reused.

#include <cstdint>
#include <memory>

namespace trireme::kernels {

/// Replaces LibTorch's CPU allocator for the rest of the process (idempotent). The program does so
/// at start; a library user opts in.
void install_caching_allocator();

/// Requested bytes of tensors, exact also where another thread frees.
struct MemoryCounters {
  int64_t live = 0, peak = 0;
};
/// Counters of the rank that this thread works for (tag_memory), or of the process where none was
/// tagged.
MemoryCounters memory_counters();
/// Blocks that this thread allocates from now on count for `rank`.
void tag_memory(int rank);
/// Counts bytes that this thread's rank took elsewhere (shared memory) until the token goes.
std::shared_ptr<void> count_memory(int64_t bytes);
/// Sets the peak of this thread's rank to what is live now.
void reset_peak();
/// Gives cached free blocks back to the system.
void trim_memory();

}  // namespace trireme::kernels
