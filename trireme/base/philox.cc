#include "trireme/base/philox.h"

#include <cmath>
#include <numbers>

#include "trireme/base/hash.h"

namespace trireme::base {

std::array<uint32_t, 4> philox(uint64_t key, std::array<uint32_t, 4> c) {
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    uint64_t p0 = uint64_t{0xD2511F53} * c[0], p1 = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c;
}

uint64_t stream_key(uint64_t seed, std::string_view stream, uint64_t a, uint64_t b, uint64_t c) {
  const uint64_t parts[] = {seed, a, b, c};
  return hash_text(stream, hash_bytes(parts, sizeof parts));
}

double normal(uint64_t key, uint64_t index) {
  uint64_t pair = index / 2;
  auto w = philox(key, {static_cast<uint32_t>(pair), static_cast<uint32_t>(pair >> 32), 0, 0});
  double radius = std::sqrt(-2.0 * std::log(uniform(w[0])));
  double angle = 2.0 * std::numbers::pi * uniform(w[1]);
  return radius * (index % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

uint64_t uniform_below(uint64_t key, uint64_t index, uint64_t bound) {
  auto w = philox(key, {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 1});
  uint64_t word = uint64_t{w[0]} << 32 | w[1];
  return static_cast<uint64_t>((static_cast<unsigned __int128>(word) * bound) >> 64);
}

}  // namespace trireme::base
