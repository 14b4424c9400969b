#include "trireme/kernels/parallel.h"

#include <ATen/ATen.h>
#include <ATen/TensorIterator.h>

namespace trireme::kernels {

void parallel_for(int64_t count, int64_t grain, c10::function_ref<void(int64_t, int64_t)> body) {
  if (count <= 0) return;
  if (count <= grain) return body(0, count);
  // TensorIterator is the exported function that runs a callback on the pool. It only does
  // arithmetic on the address, which is never read.
  char* const base = reinterpret_cast<char*>(uintptr_t{1} << 20);
  at::Tensor indices = at::from_blob(base, {count}, at::kByte);
  auto iterator = at::TensorIterator::borrowing_nullary_op(indices);
  iterator.for_each(
      [&](char** data, const int64_t*, int64_t size,
          int64_t repeats) {  // one dimension: repeats is 1
        int64_t begin = data[0] - base;
        body(begin, begin + size * repeats);
      },
      grain);
}

}  // namespace trireme::kernels
