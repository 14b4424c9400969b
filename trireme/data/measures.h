#pragma once
// Measures of guesses against what is right: classes and numbers. Sums over samples, so that parts
// of a dataset can be counted apart and put together. What is not defined (no sample, no spread) is
// NaN; scores of classes are 0 then, as in scikit-learn.

#include <cstdint>
#include <span>
#include <vector>

namespace trireme::data {

/// Counts of guesses by right class and guessed class.
class Confusion {
 public:
  explicit Confusion(int64_t classes)
      : classes_(classes), counts_(static_cast<size_t>(classes * classes)) {}
  /// ConfigError for a class that is not there.
  void add(int64_t right, int64_t guess, int64_t times = 1);
  double accuracy() const;
  /// Harmonic mean of precision and recall of one class.
  double f1(int64_t of_class) const;
  /// Mean over the classes that occur, right or guessed.
  double macro_f1() const;
  /// Matthews' correlation coefficient, for any number of classes (Gorodkin, 2004).
  double matthews() const;

 private:
  double at(int64_t right, int64_t guess) const {
    return static_cast<double>(counts_[right * classes_ + guess]);
  }
  /// Guesses of a class; samples of a class.
  double guessed(int64_t of_class) const;
  double occurring(int64_t of_class) const;
  double total() const;

  int64_t classes_;
  std::vector<int64_t> counts_;
};

/// Linear correlation of two series of equal length. ConfigError where lengths differ.
double pearson(std::span<const double> a, std::span<const double> b);
/// Correlation of their ranks; equal values share the mean of theirs.
double spearman(std::span<const double> a, std::span<const double> b);

}  // namespace trireme::data
