#include "trireme/base/hash.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <charconv>

#include "trireme/base/error.h"

namespace trireme::base {

uint64_t hash_bytes(const void* data, size_t size, uint64_t seed) {
  return XXH3_64bits_withSeed(data, size, seed);
}

uint64_t hash_combine(uint64_t hash, uint64_t value) { return hash_bytes(&value, sizeof value, hash); }

std::string hash_to_text(uint64_t hash) { return fmt::format("{:016x}", hash); }

uint64_t hash_from_text(const std::string& text) {
  uint64_t hash = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  if (error != std::errc() || end != text.data() + text.size())
    throw FormatError(fmt::format("\"{}\" is no hexadecimal checksum", text));
  return hash;
}

}  // namespace trireme::base
