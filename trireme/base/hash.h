#pragma once
// 64-bit hashes (XXH3): checksums of files and tensors, message schemas, random streams. Stable across machines.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace trireme::base {

/// XXH3 (64 bits) of a byte range.
uint64_t hash_bytes(const void* data, size_t size, uint64_t seed = 0);
inline uint64_t hash_text(std::string_view text, uint64_t seed = 0) {
  return hash_bytes(text.data(), text.size(), seed);
}
/// Mixes a value into a running hash.
uint64_t hash_combine(uint64_t hash, uint64_t value);

/// A hash as files hold it, in 16 hexadecimal digits; and back, FormatError where there is anything else.
std::string hash_to_text(uint64_t hash);
uint64_t hash_from_text(const std::string& text);

}  // namespace trireme::base
