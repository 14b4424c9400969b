#include "trireme/data/legacy_random.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace trireme::data {

double NumpyRandom::random() {
  const uint32_t high = engine_() >> 5, low = engine_() >> 6;
  return (high * 0x1p26 + low) * 0x1p-53;
}

uint64_t NumpyRandom::bounded(uint64_t last) {
  if (last == 0) return 0;
  uint64_t mask = last;
  for (int shift = 1; shift < 64; shift *= 2) mask |= mask >> shift;
  while (true) {
    uint64_t drawn = engine_();
    if (last > std::numeric_limits<uint32_t>::max()) drawn = drawn << 32 | engine_();
    if ((drawn &= mask) <= last) return drawn;
  }
}

int64_t NumpyRandom::geometric(double p) {
  const double drawn = random();
  if (p < 1.0 / 3) return static_cast<int64_t>(std::ceil(std::log1p(-drawn) / std::log(1 - p)));
  int64_t trials = 1;
  for (double sum = p, next = p; drawn > sum; ++trials) sum += next *= 1 - p;
  return trials;
}

int64_t NumpyRandom::choice(std::span<const double> probabilities) {
  std::vector<double> sums(probabilities.size());
  std::partial_sum(probabilities.begin(), probabilities.end(), sums.begin());
  const double total = sums.back();
  for (double& sum : sums) sum /= total;
  return std::upper_bound(sums.begin(), sums.end(), random()) - sums.begin();
}

std::vector<int64_t> NumpyRandom::permutation(int64_t size) {
  std::vector<int64_t> order(size);
  std::iota(order.begin(), order.end(), int64_t{0});
  shuffle(std::span(order));
  return order;
}

std::vector<int64_t> torch_randperm(int64_t size, uint64_t seed) {
  std::mt19937 engine(static_cast<uint32_t>(seed));
  std::vector<int64_t> order(size);
  // Small permutations swap forward with 32-bit draws; from 2^32 / 20 on PyTorch builds the order
  // inside out with 64-bit draws, whose remainder is even enough.
  if (size < std::numeric_limits<uint32_t>::max() / 20) {
    std::iota(order.begin(), order.end(), int64_t{0});
    for (int64_t i = 0; i + 1 < size; ++i)
      std::swap(order[i],
                order[i + static_cast<int64_t>(engine() % static_cast<uint64_t>(size - i))]);
    return order;
  }
  for (int64_t i = 0; i < size; ++i) {
    const uint64_t high = engine(), low = engine();
    const auto place = static_cast<int64_t>((high << 32 | low) % static_cast<uint64_t>(i + 1));
    order[i] = order[place];
    order[place] = i;
  }
  return order;
}

}  // namespace trireme::data
