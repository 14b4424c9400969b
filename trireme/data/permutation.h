#pragma once
// Permutation: a random order of 0 .. size-1 as a function, without a table: a Feistel network on a
// grid of a x b >= size cells that walks on until it is inside (Black and Rogaway, "Ciphers with
// arbitrary finite domains", 2002). It depends on (key, size) alone, so every rank computes the
// same order.
//
//   Permutation order(stream_key(seed, "data.windows", epoch), windows);
//   int64_t window = order(i);

#include <array>
#include <cstdint>

namespace trireme::data {

class Permutation {
 public:
  Permutation(uint64_t key, int64_t size);
  int64_t size() const { return static_cast<int64_t>(size_); }
  /// The element at place `i`, 0 <= i < size.
  int64_t operator()(int64_t i) const;

 private:
  static constexpr int kRounds = 16;
  uint64_t size_, rows_, columns_;
  std::array<uint64_t, kRounds> keys_;
};

}  // namespace trireme::data
