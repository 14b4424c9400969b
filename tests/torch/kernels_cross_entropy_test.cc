#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/data/batch.h"
#include "trireme/kernels/cross_entropy.h"
#include "trireme/nn/loss.h"

namespace trireme::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Answer {
  at::Tensor terms, gradient;
};

// The same by LibTorch's operations in fp64.
Answer expected(const at::Tensor& logits, const at::Tensor& scale, const at::Tensor& target) {
  at::Tensor x = logits.to(at::kDouble), peak = x.amax(1, true), weights = at::exp(x - peak);
  at::Tensor sum = weights.sum(1, true), gradient = weights / sum;
  gradient.sub_(at::arange(x.size(1), at::kLong).eq(target.unsqueeze(1)).to(at::kDouble));
  return {at::cat({peak, sum}, 1),
          gradient.mul(scale.unsqueeze(1)).masked_fill(scale.eq(0).unsqueeze(1), 0)};
}

Answer computed(const at::Tensor& logits, const at::Tensor& scale, const at::Tensor& target) {
  at::Tensor terms = softmax_terms(logits);
  at::Tensor peak = terms.select(1, 0).contiguous(), sum = terms.select(1, 1).contiguous();
  at::Tensor gradient = logits.detach();
  softmax_gradient(gradient, peak, sum, scale, target);
  return {terms, gradient};
}

TEST(CrossEntropy, EqualsTheReference) {
  for (at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const double bound = type == at::kDouble ? 1e-14 : type == at::kFloat ? 2e-6 : 1e-2;
    for (int64_t columns : {1, 31, 64, 1024, 1025, 3001}) {
      const int64_t rows = 70;
      at::Tensor wide = (at::randn({rows, columns + 13}) * 3 + 20).to(type);
      at::Tensor logits = wide.narrow(1, 5, columns);  // rows need not lie one after the other
      at::Tensor target = at::randint(columns + 2, {rows}, at::kLong) - 1;  // some are elsewhere
      at::Tensor scale = at::rand({rows}, at::kDouble) + 0.5;
      scale[7] = 0;
      const Answer want = expected(logits, scale, target);
      at::Tensor around = wide.clone();
      const Answer got = computed(logits, scale, target);
      EXPECT_TRUE(at::allclose(got.terms, want.terms, bound, bound))
          << columns << at::toString(type);
      EXPECT_TRUE(at::allclose(got.gradient.to(at::kDouble), want.gradient, bound, bound * 0.1))
          << columns << " " << at::toString(type);
      EXPECT_TRUE(at::equal(wide.narrow(1, 0, 5), around.narrow(1, 0, 5)));
      EXPECT_TRUE(at::equal(wide.narrow(1, 5 + columns, 8), around.narrow(1, 5 + columns, 8)));
    }
  }
}

TEST(CrossEntropy, DoesNotDependOnThreads) {
  const int threads = at::get_num_threads();
  at::Tensor logits = at::randn({129, 3001}), target = at::randint(3001, {129}, at::kLong);
  at::Tensor scale = at::rand({129}, at::kDouble);
  at::set_num_threads(1);
  const Answer one = computed(logits.clone(), scale, target);
  at::set_num_threads(3);
  const Answer three = computed(logits.clone(), scale, target);
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(one.terms, three.terms));
  EXPECT_TRUE(at::equal(one.gradient, three.gradient));
}

TEST(CrossEntropy, ExtremeLogits) {
  for (at::ScalarType type : {at::kDouble, at::kFloat}) {
    at::Tensor logits = at::zeros({5, 2000}, type);
    logits[0].fill_(-1e4)[1999] = 1e4;               // far apart
    logits[1].narrow(0, 0, 1500).fill_(-kInfinity);  // masked, whole blocks of it
    logits[2][3] = std::nan("");
    logits[3][1999] = kInfinity;
    logits[4].fill_(-kInfinity);
    at::Tensor terms = softmax_terms(logits);
    EXPECT_EQ(terms[0][0].item<double>(), 1e4);
    EXPECT_EQ(terms[0][1].item<double>(), 1);
    EXPECT_EQ(terms[1][1].item<double>(), 500);
    EXPECT_TRUE(std::isnan(terms[2][1].item<double>()));
    EXPECT_TRUE(std::isnan(terms[3][1].item<double>()));
    EXPECT_EQ(terms[4][1].item<double>(), 0);
  }
  at::Tensor none = softmax_terms(at::empty({3, 0}));
  EXPECT_TRUE(none.select(1, 0).eq(-kInfinity).all().item<bool>());
  EXPECT_TRUE(none.select(1, 1).eq(0).all().item<bool>());
}

TEST(CrossEntropy, RefusesWhatItCannotRead) {
  EXPECT_THROW(softmax_terms(at::zeros({2, 3}, at::kLong)), base::InternalError);
  EXPECT_THROW(softmax_terms(at::zeros({3, 2}).t()), base::InternalError);
  at::Tensor logits = at::zeros({2, 3}), terms = at::zeros({2}, at::kDouble);
  EXPECT_THROW(softmax_gradient(logits, terms, terms, at::zeros({2}), at::zeros({2}, at::kLong)),
               base::InternalError);
  EXPECT_THROW(softmax_gradient(logits, terms, terms, terms, at::zeros({3}, at::kLong)),
               base::InternalError);
}

// The whole loss against LibTorch's, ignored labels among them.
TEST(CrossEntropy, TheLossAndItsGradient) {
  const comm::Comm alone;
  for (at::ScalarType type : {at::kDouble, at::kFloat}) {
    const double bound = type == at::kDouble ? 1e-12 : 1e-5;
    at::Tensor logits = at::randn({3, 7, 501}, type).requires_grad_(true);
    at::Tensor twin = logits.detach().clone().requires_grad_(true);
    at::Tensor labels = at::randint(501, {3, 7}, at::kLong);
    labels[1][2] = labels[2][6] = data::kIgnoreLabel;
    at::Tensor loss = nn::cross_entropy_sum(logits, labels, 0, alone);
    at::Tensor want = at::cross_entropy_loss(twin.flatten(0, 1), labels.flatten(), {},
                                             at::Reduction::Sum, data::kIgnoreLabel);
    EXPECT_NEAR(loss.item<double>(), want.item<double>(), bound * want.item<double>());
    (loss * 0.25).backward();
    (want * 0.25).backward();
    EXPECT_TRUE(at::allclose(logits.grad(), twin.grad(), bound, bound * 0.1));
  }
}

}  // namespace
}  // namespace trireme::kernels
