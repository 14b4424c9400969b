#include "trireme/base/hasher.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace trireme::base {

struct Hasher::State {
  XXH3_state_t xxh3;
};

Hasher::Hasher(uint64_t seed) : state_(std::make_unique<State>()) {
  XXH3_64bits_reset_withSeed(&state_->xxh3, seed);
}
Hasher::~Hasher() = default;

void Hasher::add(const void* data, size_t size) {
  XXH3_64bits_update(&state_->xxh3, data, size);
}

uint64_t Hasher::hash() const {
  return XXH3_64bits_digest(&state_->xxh3);
}

}  // namespace trireme::base
