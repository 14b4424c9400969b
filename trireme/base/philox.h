#pragma once
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): random words as
// a pure function of a 64-bit key and a 128-bit counter.
//
// trireme never keeps a generator's state: a key names a stream (seed, purpose, step, layer, site) and a
// counter names a place in a *global* tensor, so a value does not depend on the layout that draws it.

#include <array>
#include <cstdint>
#include <string_view>

namespace trireme::base {

/// Four random 32-bit words.
std::array<uint32_t, 4> philox(uint64_t key, std::array<uint32_t, 4> counter);

/// The key of a stream: a hash of the run's seed and the parts that name the stream.
uint64_t stream_key(uint64_t seed, std::string_view stream, uint64_t a = 0, uint64_t b = 0, uint64_t c = 0);

/// A uniform number in (0, 1) from 32 bits.
inline double uniform(uint32_t word) { return (word + 0.5) * 0x1p-32; }

/// Element `index` of the stream of standard normal numbers of `key` (Box-Muller, two per two words).
double normal(uint64_t key, uint64_t index);

/// A uniform integer in [0, bound), bias below 2^-32 (128-bit multiply of 64 bits).
uint64_t uniform_below(uint64_t key, uint64_t index, uint64_t bound);

}  // namespace trireme::base
