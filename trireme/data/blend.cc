#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/data/causal.h"

namespace trireme::data {

BlendDataset::BlendDataset(std::vector<std::shared_ptr<const Dataset>> datasets,
                           std::vector<double> weights)
    : datasets_(std::move(datasets)), weights_(std::move(weights)), used_(datasets_.size(), 0) {
  if (datasets_.empty() || datasets_.size() != weights_.size()) {
    throw base::ConfigError(
        fmt::format("a blend of {} datasets with {} weights; expected at least one dataset and a "
                    "weight for each",
                    datasets_.size(), weights_.size()));
  }
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (!(weights_[i] > 0) || !std::isfinite(weights_[i])) {
      throw base::ConfigError(fmt::format(
          "dataset {} has weight {}; expected a positive number (leave the dataset out to "
          "give it none)",
          datasets_[i]->description(), weights_[i]));
    }
    if (datasets_[i]->seq_length() != seq_length()) {
      throw base::ConfigError(
          fmt::format("dataset {} has samples of {} tokens; the first of the blend has {}",
                      datasets_[i]->description(), datasets_[i]->seq_length(), seq_length()));
    }
  }
  const double sum = std::accumulate(weights_.begin(), weights_.end(), 0.0);
  for (double& weight : weights_) weight /= sum;
}

int64_t BlendDataset::size() const {
  return std::accumulate(datasets_.begin(), datasets_.end(), int64_t{0},
                         [](int64_t sum, const auto& dataset) { return sum + dataset->size(); });
}

std::string BlendDataset::description() const {
  std::string text = fmt::format("a blend of {} datasets", datasets_.size());
  for (size_t i = 0; i < datasets_.size(); ++i) {
    text += fmt::format("\n  {:.4f}  {}", weights_[i], datasets_[i]->description());
  }
  return text;
}

Identity BlendDataset::identity() const {
  Identity all{.seq_length = seq_length(), .sources = {}};
  for (size_t i = 0; i < datasets_.size(); ++i) {
    for (SourceIdentity source : datasets_[i]->identity().sources) {
      source.weight = weights_[i];
      all.sources.push_back(std::move(source));
    }
  }
  return all;
}

BlendDataset::Place BlendDataset::place(int64_t index) const {
  std::lock_guard lock(mutex_);
  if (index < next_) {
    next_ = 0;
    std::fill(used_.begin(), used_.end(), 0);
  }
  while (true) {
    // Sample j of a dataset of weight w has the window of places j / w < n < (j + 1) / w + 1, n
    // counted from 1.
    int due = -1;
    double earliest = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < used_.size(); ++i) {
      auto used = static_cast<double>(used_[i]);
      bool open = used < weights_[i] * static_cast<double>(next_ + 1);
      if (double closes = (used + 1) / weights_[i]; open && closes < earliest) {
        earliest = closes;
        due = static_cast<int>(i);
      }
    }
    base::check(due >= 0, "no dataset of the blend is due at sample {}", next_);
    int64_t sample = used_[due]++;
    if (next_++ == index) return {due, sample};
  }
}

void BlendDataset::read(int64_t index, int64_t* input_ids, int64_t* labels) const {
  Place from = place(index);
  datasets_[from.dataset]->read(from.sample, input_ids, labels);
}

}  // namespace trireme::data
