#pragma once
// The arithmetic of reductions: the same for every backend, so results are the same bit for bit.

#include <cstddef>
#include <cstdint>
#include <span>

#include "trireme/comm/comm.h"

namespace trireme::comm {

/// Each output[i] = sources[0][i] + sources[1][i] + ... (or the maximum; not-a-number wins), in
/// this order. 16-bit floats accumulate in fp32 and round once, to nearest even; integers wrap; for
/// bool both mean "any". Outputs may be among the sources, of which there are at least two.
void reduce(std::span<const std::byte* const> sources, std::span<std::byte* const> outputs,
            int64_t count, DType dtype, Reduce reduce);

}  // namespace trireme::comm
