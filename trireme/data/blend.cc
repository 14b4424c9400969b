#include "trireme/data/blend.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "trireme/base/error.h"

namespace trireme::data {
namespace {

/// The sum as NumPy adds up: pairwise above 128 numbers, eight running sums above 7.
double numpy_sum(std::span<const double> values) {
  const size_t n = values.size();
  if (n < 8) return std::accumulate(values.begin(), values.end(), 0.0);
  if (n > 128) {
    size_t half = n / 2;
    half -= half % 8;
    return numpy_sum(values.first(half)) + numpy_sum(values.subspan(half));
  }
  double sums[8];
  std::copy_n(values.begin(), 8, sums);
  size_t i = 8;
  for (; i + 8 <= n; i += 8) {
    for (size_t k = 0; k < 8; ++k) sums[k] += values[i + k];
  }
  double sum =
      ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  for (; i < n; ++i) sum += values[i];
  return sum;
}

std::string describe(const std::vector<FieldSpec>& fields) {
  std::string text;
  for (const FieldSpec& field : fields) {
    text += fmt::format("{}{} {}[{}]", text.empty() ? "" : ", ", field.name,
                        base::name_of(field.dtype), fmt::join(field.shape, " x "));
  }
  return text;
}

}  // namespace

std::vector<double> normalized_weights(const std::vector<double>& weights) {
  const double sum = numpy_sum(weights);
  std::vector<double> shares = weights;
  for (double& share : shares) share /= sum;
  return shares;
}

BlendDataset::BlendDataset(std::vector<std::shared_ptr<const Dataset>> datasets,
                           std::vector<double> weights, BlendRule rule)
    : datasets_(std::move(datasets)),
      weights_(std::move(weights)),
      rule_(rule) {
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
    if (datasets_[i]->fields() != fields()) {
      throw base::ConfigError(fmt::format(
          "dataset {} has samples of {}; the first of the blend has {}",
          datasets_[i]->description(), describe(datasets_[i]->fields()), describe(fields())));
    }
  }
  given_sum_ = std::accumulate(weights_.begin(), weights_.end(), 0.0);
  weights_ = normalized_weights(weights_);
  order_ = std::make_unique<BlendOrder>(weights_, rule_);
}

int64_t BlendDataset::size() const {
  return std::accumulate(datasets_.begin(), datasets_.end(), int64_t{0},
                         [](int64_t sum, const auto& dataset) { return sum + dataset->size(); });
}

std::string BlendDataset::description() const {
  std::string text = fmt::format("a blend of {} datasets", datasets_.size());
  if (std::abs(given_sum_ - 1) > 1e-6)
    text += fmt::format(" (the weights add up to {:g}; these are their shares)", given_sum_);
  for (size_t i = 0; i < datasets_.size(); ++i) {
    text += fmt::format("\n  {:.4f}  {}", weights_[i], datasets_[i]->description());
  }
  return text;
}

Identity BlendDataset::identity() const {
  Identity all;
  for (size_t i = 0; i < datasets_.size(); ++i) {
    Identity own = datasets_[i]->identity();
    all.seq_length = own.seq_length;
    for (SourceIdentity& source : own.sources) {
      source.weight *= weights_[i];
      if (rule_ == BlendRule::megatron) source.samples += ", blended as Megatron-LM does";
      all.sources.push_back(std::move(source));
    }
  }
  return all;
}

std::string BlendDataset::origin(int64_t index) const {
  const Place from = place(index);
  return datasets_[from.dataset]->origin(from.sample);
}

void BlendDataset::read(int64_t index, Row row) const {
  Place from = place(index);
  datasets_[from.dataset]->read(from.sample, row);
}

std::vector<BlendDataset::Place> exhaustive_blend(const std::vector<int64_t>& sizes) {
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  std::vector<double> weights;
  for (int64_t size : sizes) {
    if (size < 1) throw base::ConfigError("an exhaustive blend: a dataset holds no sample");
    weights.push_back(static_cast<double>(size) / static_cast<double>(total));
  }
  std::vector<int64_t> used(sizes.size(), 0);
  std::vector<BlendDataset::Place> places;
  places.reserve(total);
  for (int64_t n = 0; n < total; ++n) {
    const int due = most_lacking(weights, used, n, [&](size_t i) { return used[i] < sizes[i]; });
    places.push_back({due, used[due]++});
  }
  return places;
}

}  // namespace trireme::data
