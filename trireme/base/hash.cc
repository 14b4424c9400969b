#include "trireme/base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace trireme::base {

uint64_t hash_bytes(const void* data, size_t size, uint64_t seed) {
  return XXH3_64bits_withSeed(data, size, seed);
}

uint64_t hash_combine(uint64_t hash, uint64_t value) { return hash_bytes(&value, sizeof value, hash); }

}  // namespace trireme::base
