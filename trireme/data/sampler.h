#pragma once
// Orders: which example of a finite set comes at place i of the endless sequence of samples. An
// order is a function of (its name, size, seed), never of ranks, so a run resumes anywhere.
//
// DistributedProxySampler is OSLO's (and PyTorch's DistributedSampler): the share of one rank of
// another sampler's indices, for loops of one's own; trireme's Loader shares rows out by itself.
//
//   auto order = make_order({.name = "random"}, examples, seed);
//   int64_t example = order->at(consumed_samples);

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace trireme::data {

class Order {
 public:
  virtual ~Order() = default;
  /// The example at place `place` >= 0. Thread-safe.
  virtual int64_t at(int64_t place) const = 0;
};

/// `random`: each epoch a new order of all (permutation.h); `sequential`; `cyclic`: each epoch
/// torch.randperm seeded by seed + epoch, as LiBai's and Megatron-LM's cyclic samplers on one rank;
/// `weighted`: drawn by weight with replacement; `weighted_once`: each epoch all of them once, the
/// heavy ones rather earlier (Efraimidis and Spirakis, "Weighted random sampling with a reservoir",
/// 2006).
struct OrderOptions {
  std::string name = "random";
  std::vector<double> weights = {};  // of the examples, for the weighted ones
};

/// ConfigError: an unknown name, no example, weights that are missing, negative or all zero, more
/// than 2^31 - 1 examples where the order keeps a table of them (`cyclic`, `weighted_once`).
std::unique_ptr<const Order> make_order(const OrderOptions& options, int64_t size, uint64_t seed);

struct DistributedOptions {
  int num_replicas = 1, rank = 0;
  bool shuffle = true;
  uint64_t seed = 0;
  bool drop_last = false;  // else the first ones are repeated until every rank has as many
};

class DistributedProxySampler {
 public:
  /// `indices`: what the sampler inside yields. ConfigError: a rank that is none, no index for each
  /// rank to have one where the last are dropped.
  DistributedProxySampler(std::vector<int64_t> indices, const DistributedOptions& options);
  /// The order of each epoch is another one.
  void set_epoch(int64_t epoch) { epoch_ = epoch; }
  /// Indices of each rank.
  int64_t size() const { return size_; }
  /// This rank's indices in this epoch.
  std::vector<int64_t> indices() const;

 private:
  std::vector<int64_t> inner_;
  DistributedOptions options_;
  int64_t size_, epoch_ = 0;
};

}  // namespace trireme::data
