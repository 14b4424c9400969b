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

/// The type in which reductions accumulate: fp32 for 16-bit floats, else the type itself.
DType accumulation_type(DType dtype);

/// The same sum in parts: goes on from `before`, what the ranks before came to in accumulation_type
/// (null: there are none), and leaves in `out` what the sum comes to, in accumulation_type, or in
/// `dtype` if these sources are the `last`. `out` may be among the sources. Parts in rank order
/// give what `reduce` gives, bit for bit.
void reduce_onwards(const std::byte* before, std::span<const std::byte* const> sources,
                    std::byte* out, bool last, int64_t count, DType dtype, Reduce reduce);

}  // namespace trireme::comm
