#pragma once
// Stands in for the CUDA runtime and NCCL where no GPU is: device memory is marked memory of the host, a stream is a
// thread, and communicators connect threads of this process. Sends and collectives hold their stream back until the
// peers have come, as NCCL's do, so what would wait for ever on GPUs does so here.

#include <cstddef>

namespace trireme::test {

/// Memory that counts as a GPU's.
void* stub_alloc(size_t bytes);
void stub_free(void* memory);
/// Waits until the calling thread's device has done all that it was given.
void stub_synchronize();

}  // namespace trireme::test
