#pragma once
// A parallel loop on LibTorch's own intra-op threads. at::parallel_for is a header template that is
// serial unless the including file is compiled with OpenMP, and a second OpenMP runtime would fight
// with LibTorch's; this one runs inside LibTorch.

#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace trireme::kernels {

/// Calls body(begin, end) on disjoint ranges that cover [0, count), each of `grain` items or more.
/// Which thread gets which range depends on the number of threads; results must not.
void parallel_for(int64_t count, int64_t grain,
                  c10::function_ref<void(int64_t begin, int64_t end)> body);

}  // namespace trireme::kernels
