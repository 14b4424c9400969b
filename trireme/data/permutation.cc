#include "trireme/data/permutation.h"

#include <cmath>

#include "trireme/base/philox.h"

namespace trireme::data {
namespace {

/// A keyed pseudo-random number below `bound` (the finalizer of SplitMix64, Steele et al. 2014).
uint64_t mix(uint64_t key, uint64_t value, uint64_t bound) {
  uint64_t z = key + value * 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  z ^= z >> 31;
  return static_cast<uint64_t>((static_cast<unsigned __int128>(z) * bound) >> 64);
}

}  // namespace

Permutation::Permutation(uint64_t key, int64_t size) : size_(static_cast<uint64_t>(size)) {
  rows_ = static_cast<uint64_t>(std::sqrt(static_cast<double>(size))) + 1;
  columns_ = size_ / rows_ + 1;
  for (uint32_t round = 0; round < kRounds; ++round) {
    auto words = base::philox(key, {round, 0, 0, 2});
    keys_[round] = uint64_t{words[0]} << 32 | words[1];
  }
}

int64_t Permutation::operator()(int64_t i) const {
  auto x = static_cast<uint64_t>(i);
  do {
    uint64_t row = x / columns_, column = x % columns_;
    for (int round = 0; round < kRounds; round += 2) {
      row += mix(keys_[round], column, rows_);
      if (row >= rows_) row -= rows_;
      column += mix(keys_[round + 1], row, columns_);
      if (column >= columns_) column -= columns_;
    }
    x = row * columns_ + column;
  } while (x >= size_);
  return static_cast<int64_t>(x);
}

}  // namespace trireme::data
