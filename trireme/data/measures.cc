#include "trireme/data/measures.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "trireme/base/error.h"

namespace trireme::data {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

double mean(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// Ranks from 1; equal values share the mean of theirs.
std::vector<double> ranks(std::span<const double> values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) { return values[i]; });
  std::vector<double> found(values.size());
  for (size_t i = 0; i < order.size();) {
    size_t end = i;
    while (end < order.size() && values[order[end]] == values[order[i]]) ++end;
    for (size_t k = i; k < end; ++k) found[order[k]] = static_cast<double>(i + 1 + end) / 2;
    i = end;
  }
  return found;
}

}  // namespace

void Confusion::add(int64_t right, int64_t guess, int64_t times) {
  for (int64_t of_class : {right, guess})
    if (of_class < 0 || of_class >= classes_)
      throw base::ConfigError(
          fmt::format("class {} of {}: classes are 0 to {}", of_class, classes_, classes_ - 1));
  counts_[right * classes_ + guess] += times;
}

double Confusion::guessed(int64_t of_class) const {
  double sum = 0;
  for (int64_t right = 0; right < classes_; ++right) sum += at(right, of_class);
  return sum;
}

double Confusion::occurring(int64_t of_class) const {
  double sum = 0;
  for (int64_t guess = 0; guess < classes_; ++guess) sum += at(of_class, guess);
  return sum;
}

double Confusion::total() const {
  return static_cast<double>(std::accumulate(counts_.begin(), counts_.end(), int64_t{0}));
}

double Confusion::accuracy() const {
  double hits = 0;
  for (int64_t c = 0; c < classes_; ++c) hits += at(c, c);
  return hits / total();
}

double Confusion::f1(int64_t of_class) const {
  const double both = guessed(of_class) + occurring(of_class);
  return both > 0 ? 2 * at(of_class, of_class) / both : 0;
}

double Confusion::macro_f1() const {
  double sum = 0, classes = 0;
  for (int64_t c = 0; c < classes_; ++c) {
    if (guessed(c) + occurring(c) == 0) continue;
    sum += f1(c);
    ++classes;
  }
  return classes > 0 ? sum / classes : kNone;
}

double Confusion::matthews() const {
  const double all = total();
  double hits = 0, mixed = 0, guesses = 0, samples = 0;
  for (int64_t c = 0; c < classes_; ++c) {
    hits += at(c, c);
    mixed += guessed(c) * occurring(c);
    guesses += guessed(c) * guessed(c);
    samples += occurring(c) * occurring(c);
  }
  const double spread = (all * all - guesses) * (all * all - samples);
  return spread > 0 ? (hits * all - mixed) / std::sqrt(spread) : 0;
}

double pearson(std::span<const double> a, std::span<const double> b) {
  if (a.size() != b.size())
    throw base::ConfigError(
        fmt::format("correlation of {} with {} values: give as many of both", a.size(), b.size()));
  if (a.size() < 2) return kNone;
  const double mean_a = mean(a), mean_b = mean(b);
  double together = 0, of_a = 0, of_b = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    together += (a[i] - mean_a) * (b[i] - mean_b);
    of_a += (a[i] - mean_a) * (a[i] - mean_a);
    of_b += (b[i] - mean_b) * (b[i] - mean_b);
  }
  return of_a > 0 && of_b > 0 ? together / std::sqrt(of_a * of_b) : kNone;
}

double spearman(std::span<const double> a, std::span<const double> b) {
  if (a.size() != b.size()) return pearson(a, b);
  return pearson(ranks(a), ranks(b));
}

}  // namespace trireme::data
