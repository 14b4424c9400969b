// Measures of classes and numbers; the values are those of scikit-learn 1.9 and SciPy 1.17.
#include <gtest/gtest.h>

#include <cmath>

#include "trireme/base/error.h"
#include "trireme/data/measures.h"

namespace trireme::data {
namespace {

Confusion confusion(int64_t classes, const std::vector<int64_t>& right,
                    const std::vector<int64_t>& guess) {
  Confusion all(classes);
  for (size_t i = 0; i < right.size(); ++i) all.add(right[i], guess[i]);
  return all;
}

TEST(Measures, ClassesAreScoredAsScikitLearnDoes) {
  const Confusion many =
      confusion(5, {0, 1, 2, 2, 1, 0, 3, 3, 2, 1, 0, 0}, {0, 2, 2, 2, 1, 1, 3, 0, 2, 1, 0, 3});
  EXPECT_NEAR(many.accuracy(), 0.6666666666666666, 1e-15);
  EXPECT_NEAR(many.macro_f1(), 0.6488095238095238, 1e-15);  // the fifth class does not occur
  EXPECT_NEAR(many.matthews(), 0.5566037735849056, 1e-15);
  EXPECT_NEAR(many.f1(2), 6.0 / 7, 1e-15);
  const Confusion two = confusion(2, {1, 0, 1, 1, 0, 0, 1, 0}, {1, 1, 1, 0, 0, 0, 1, 0});
  EXPECT_NEAR(two.f1(1), 0.75, 1e-15);
  EXPECT_NEAR(two.matthews(), 0.5, 1e-15);
}

TEST(Measures, WhatIsNotDefinedIsZeroOrNoNumber) {
  const Confusion one_sided = confusion(2, {1, 1, 1}, {1, 1, 1});
  EXPECT_EQ(one_sided.matthews(), 0);
  EXPECT_EQ(one_sided.f1(0), 0);
  EXPECT_TRUE(std::isnan(Confusion(3).macro_f1()));
  const std::vector<double> flat{2, 2, 2}, rising{1, 2, 3};
  EXPECT_TRUE(std::isnan(pearson(flat, rising)));
  EXPECT_TRUE(std::isnan(spearman({}, {})));
}

TEST(Measures, CorrelationsAreSciPys) {
  const std::vector<double> a{1.0, 2.5, 2.5, 4.0, -1.0, 0.3}, b{0.9, 2.0, 3.1, 2.0, -0.5, 0.9};
  EXPECT_NEAR(pearson(a, b), 0.8411957285803958, 1e-14);
  EXPECT_NEAR(spearman(a, b), 0.8508410434878082, 1e-14);  // with equal values on both sides
  const std::vector<double> c{1, 2, 2, 4, 7.5}, d{3, 1, 4, 4, 20};
  EXPECT_NEAR(pearson(c, d), 0.9206007419111717, 1e-14);
  EXPECT_NEAR(spearman(c, d), 0.7631578947368421, 1e-14);
  EXPECT_EQ(spearman(c, c), 1);
  EXPECT_THROW(pearson(c, std::vector<double>{1, 2}), base::ConfigError);
}

TEST(Measures, RefuseWhatDoesNotFit) {
  Confusion two(2);
  EXPECT_THROW(two.add(0, 2), base::ConfigError);
  EXPECT_THROW(two.add(-1, 0), base::ConfigError);
  const std::vector<double> a{1, 2}, b{1};
  EXPECT_THROW(pearson(a, b), base::ConfigError);
  EXPECT_THROW(spearman(a, b), base::ConfigError);
}

}  // namespace
}  // namespace trireme::data
