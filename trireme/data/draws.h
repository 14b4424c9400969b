#pragma once
// Draws: the random numbers of one sample, a stream of Philox words keyed by (seed, sample index):
// the same whichever thread or rank reads the sample, and whatever was read before.
//
//   Draws draws(base::stream_key(seed, "data.sample", index));
//   if (draws.chance(0.15)) ...

#include <array>
#include <cstdint>
#include <span>
#include <utility>

#include "trireme/base/philox.h"

namespace trireme::data {

class Draws {
 public:
  explicit Draws(uint64_t key) : key_(key) {}
  uint64_t word() {
    if (next_ == 2) next_ = 0;
    if (next_ == 0) {
      const auto words = base::philox(
          key_, {static_cast<uint32_t>(block_), static_cast<uint32_t>(block_ >> 32), 0, 3});
      ++block_;
      words_ = {uint64_t{words[0]} << 32 | words[1], uint64_t{words[2]} << 32 | words[3]};
    }
    return words_[next_++];
  }
  /// An integer in [0, bound).
  int64_t below(int64_t bound) {
    return static_cast<int64_t>(
        (static_cast<unsigned __int128>(word()) * static_cast<uint64_t>(bound)) >> 64);
  }
  /// A number in [0, 1).
  double uniform() { return static_cast<double>(word() >> 11) * 0x1p-53; }
  bool chance(double probability) { return uniform() < probability; }
  template <class T>
  void shuffle(std::span<T> items) {
    for (size_t i = items.size(); i-- > 1;)
      std::swap(items[i], items[static_cast<size_t>(below(static_cast<int64_t>(i) + 1))]);
  }

 private:
  uint64_t key_, block_ = 0;
  std::array<uint64_t, 2> words_{};
  int next_ = 0;
};

}  // namespace trireme::data
