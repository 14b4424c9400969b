#pragma once
// Blend: samples of several datasets, mixed by weight. Which dataset gives sample n is a function
// of the weights alone; each dataset's samples come in its own order, epoch after epoch.
//
// Two rules. `exact`: after any number n of samples each dataset has given less than one sample
// more or less than weight * n: every sample of a dataset has the window of places that keeps this
// so, and of the open windows the one that closes first is served (Tijdeman, "The chairman
// assignment problem", 1980; Baruah et al., "Proportionate progress", 1996). `megatron`: the
// dataset that lacks most gives the next one, as Megatron-LM, LiBai and OSLO do, bit for bit; it
// drifts by up to two.
//
// A blend is a dataset, so blends nest.

#include <memory>
#include <string>
#include <vector>

#include "trireme/data/blend_order.h"
#include "trireme/data/dataset.h"

namespace trireme::data {

class BlendDataset : public Dataset {
 public:
  /// Weights are normalised. ConfigError: none, one that is zero, negative or no number, datasets
  /// with differing fields.
  BlendDataset(std::vector<std::shared_ptr<const Dataset>> datasets, std::vector<double> weights,
               BlendRule rule = BlendRule::exact);

  /// The sizes of all datasets together.
  int64_t size() const override;
  std::string description() const override;
  std::vector<FieldSpec> fields() const override { return datasets_.front()->fields(); }
  std::string origin(int64_t index) const override;
  Identity identity() const override;
  /// Sample `index` of the blend: the next one of the dataset that is due. Thread-safe; what going
  /// back costs is in blend_order.h.
  void read(int64_t index, Row row) const override;

  using Place = BlendOrder::Place;
  /// Where sample `index` comes from.
  Place place(int64_t index) const { return order_->at(index); }

 private:
  std::vector<std::shared_ptr<const Dataset>> datasets_;
  std::vector<double> weights_;
  double given_sum_ = 1;
  BlendRule rule_;
  std::unique_ptr<const BlendOrder> order_;
};

/// Samples of each dataset until all are spent, as Megatron-LM's exhaustive blend orders them:
/// weights are the shares of the sizes, and of the datasets not yet spent the one that lacks most
/// comes next.
std::vector<BlendDataset::Place> exhaustive_blend(const std::vector<int64_t>& sizes);

/// Weights over their sum, added up in NumPy's order, so that the shares are its bits.
std::vector<double> normalized_weights(const std::vector<double>& weights);

}  // namespace trireme::data
