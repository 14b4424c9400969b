#include "trireme/data/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <mutex>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/base/philox.h"
#include "trireme/data/legacy_random.h"
#include "trireme/data/permutation.h"

namespace trireme::data {
namespace {

using base::ConfigError;

class Sequential : public Order {
 public:
  explicit Sequential(int64_t size) : size_(size) {}
  int64_t at(int64_t place) const override { return place % size_; }

 private:
  int64_t size_;
};

class Random : public Order {
 public:
  Random(int64_t size, uint64_t seed) : size_(size), seed_(seed) {}
  int64_t at(int64_t place) const override {
    const auto epoch = static_cast<uint64_t>(place / size_);
    return Permutation(base::stream_key(seed_, "data.examples", epoch), size_)(place % size_);
  }

 private:
  int64_t size_;
  uint64_t seed_;
};

/// An order whose epochs are tables; the latest one is kept.
class Tabled : public Order {
 public:
  using Make = std::function<std::vector<int64_t>(int64_t epoch)>;
  Tabled(int64_t size, Make make) : size_(size), make_(std::move(make)) {}
  int64_t at(int64_t place) const override {
    std::lock_guard lock(mutex_);
    if (epoch_ != place / size_) {
      epoch_ = place / size_;
      table_ = make_(epoch_);
    }
    return table_[place % size_];
  }

 private:
  int64_t size_;
  Make make_;
  mutable std::mutex mutex_;  // guards the two below
  mutable int64_t epoch_ = -1;
  mutable std::vector<int64_t> table_;
};

void check_table(const OrderOptions& options, int64_t size) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (size > kMost) {
    throw ConfigError(fmt::format(
        "order {} keeps a table of all examples; {} are more than the {} that it takes: use random "
        "or sequential",
        options.name, size, kMost));
  }
}

class Weighted : public Order {
 public:
  Weighted(const std::vector<double>& weights, uint64_t seed)
      : sums_(weights.size()), key_(base::stream_key(seed, "data.weighted")) {
    std::partial_sum(weights.begin(), weights.end(), sums_.begin());
  }
  int64_t at(int64_t place) const override {
    constexpr uint64_t kSteps = uint64_t{1} << 53;
    const double drawn =
        static_cast<double>(base::uniform_below(key_, static_cast<uint64_t>(place), kSteps)) *
        0x1p-53 * sums_.back();
    return std::upper_bound(sums_.begin(), sums_.end(), drawn) - sums_.begin();
  }

 private:
  std::vector<double> sums_;
  uint64_t key_;
};

/// All examples, sorted by an exponential draw over the weight.
std::vector<int64_t> weighted_epoch(const std::vector<double>& weights, uint64_t key) {
  std::vector<std::pair<double, int64_t>> draws;
  for (size_t i = 0; i < weights.size(); ++i) {
    const auto words = base::philox(
        key, {static_cast<uint32_t>(i), static_cast<uint32_t>(uint64_t{i} >> 32), 0, 0});
    draws.emplace_back(-std::log(base::uniform(words[0])) / weights[i], static_cast<int64_t>(i));
  }
  std::sort(draws.begin(), draws.end());
  std::vector<int64_t> order;
  for (const auto& [draw, example] : draws) order.push_back(example);
  return order;
}

void check_weights(const std::vector<double>& weights, int64_t size) {
  if (std::ssize(weights) != size) {
    throw ConfigError(
        fmt::format("a weighted order: {} weights for {} examples", weights.size(), size));
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!(weights[i] >= 0) || !std::isfinite(weights[i]))
      throw ConfigError(fmt::format(
          "a weighted order: example {} has weight {}; expected 0 or more", i, weights[i]));
  }
  if (std::ranges::all_of(weights, [](double w) { return w == 0; }))
    throw ConfigError("a weighted order: all weights are 0; give one example a weight at least");
}

}  // namespace

std::unique_ptr<const Order> make_order(const OrderOptions& options, int64_t size, uint64_t seed) {
  if (size < 1) throw ConfigError("an order of 0 examples: the dataset is empty");
  if (options.name == "sequential") return std::make_unique<Sequential>(size);
  if (options.name == "random") return std::make_unique<Random>(size, seed);
  if (options.name == "cyclic") {
    check_table(options, size);
    return std::make_unique<Tabled>(size, [size, seed](int64_t epoch) {
      return torch_randperm(size, seed + static_cast<uint64_t>(epoch));
    });
  }
  if (options.name == "weighted") {
    check_weights(options.weights, size);
    return std::make_unique<Weighted>(options.weights, seed);
  }
  if (options.name == "weighted_once") {
    check_table(options, size);
    check_weights(options.weights, size);
    return std::make_unique<Tabled>(size, [weights = options.weights, seed](int64_t epoch) {
      return weighted_epoch(
          weights, base::stream_key(seed, "data.weighted_once", static_cast<uint64_t>(epoch)));
    });
  }
  throw ConfigError(fmt::format(
      "order '{}'; expected random, sequential, cyclic, weighted or weighted_once", options.name));
}

DistributedProxySampler::DistributedProxySampler(std::vector<int64_t> indices,
                                                 const DistributedOptions& options)
    : inner_(std::move(indices)), options_(options) {
  const auto count = std::ssize(inner_);
  const int64_t replicas = options_.num_replicas;
  if (replicas < 1 || options_.rank < 0 || options_.rank >= replicas) {
    throw ConfigError(fmt::format("DistributedProxySampler: rank {} of {}; expected 0 to {}",
                                  options_.rank, replicas, replicas - 1));
  }
  if (count == 0 || (options_.drop_last && count < replicas)) {
    throw ConfigError(
        fmt::format("DistributedProxySampler: {} indices for {} ranks leave a rank "
                    "without one",
                    count, replicas));
  }
  size_ = options_.drop_last ? count / replicas : (count + replicas - 1) / replicas;
}

std::vector<int64_t> DistributedProxySampler::indices() const {
  const auto count = std::ssize(inner_);
  std::vector<int64_t> order;
  if (options_.shuffle)
    order = torch_randperm(count, options_.seed + static_cast<uint64_t>(epoch_));
  std::vector<int64_t> mine;
  for (int64_t i = options_.rank; i < size_ * options_.num_replicas; i += options_.num_replicas) {
    const int64_t place = i % count;
    mine.push_back(inner_[options_.shuffle ? order[place] : place]);
  }
  return mine;
}

}  // namespace trireme::data
