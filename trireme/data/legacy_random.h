#pragma once
// The random numbers of NumPy's RandomState and of PyTorch's CPU generator, both MT19937 (Matsumoto
// and Nishimura, 1998), bit for bit: for orders of samples that others fixed (Megatron-LM, LiBai,
// OSLO, PyTorch's samplers). trireme's own orders draw from Philox (draws.h) instead.
//
//   NumpyRandom random(1234);
//   random.shuffle(std::span(documents));        //
//   numpy.random.RandomState(1234).shuffle(documents) torch_randperm(10, 0); // torch.randperm(10,
//   generator=manual_seed(0))

#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace trireme::data {

class NumpyRandom {
 public:
  explicit NumpyRandom(uint32_t seed) : engine_(seed) {}
  /// 53 random bits as a number in [0, 1): `random_sample`.
  double random();
  /// An integer in [0, last], by masking and rejection; `last` 0 draws nothing.
  uint64_t bounded(uint64_t last);
  /// `randint(low, high)`: low <= result < high.
  int64_t randint(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(bounded(static_cast<uint64_t>(high - low - 1)));
  }
  /// `geometric(p)`: trials up to the first success, 0 < p <= 1.
  int64_t geometric(double p);
  /// `choice(len(p), p=p)`: an index drawn by probability.
  int64_t choice(std::span<const double> probabilities);
  template <class T>
  void shuffle(std::span<T> items) {
    for (size_t i = items.size(); i-- > 1;) std::swap(items[i], items[bounded(i)]);
  }
  /// `permutation(size)`.
  std::vector<int64_t> permutation(int64_t size);

 private:
  std::mt19937 engine_;
};

/// `torch.randperm(size)` with a CPU generator of this seed.
std::vector<int64_t> torch_randperm(int64_t size, uint64_t seed);

}  // namespace trireme::data
