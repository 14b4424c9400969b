#pragma once
// Hasher: the hash of bytes that come piece by piece; see hash.h.

#include <cstddef>
#include <cstdint>
#include <memory>

namespace trireme::base {

/// Equals hash_bytes of all pieces together.
class Hasher {
 public:
  explicit Hasher(uint64_t seed = 0);
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;
  void add(const void* data, size_t size);
  uint64_t hash() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::base
