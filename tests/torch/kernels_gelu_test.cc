#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <limits>

#include "trireme/base/error.h"
#include "trireme/kernels/gelu.h"
#include "trireme/nn/layers.h"

namespace trireme::kernels {
namespace {

// LibTorch's own gelu in fp64 is the reference.
TEST(Gelu, EqualsTheReference) {
  for (at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const double bound = type == at::kDouble ? 1e-13 : type == at::kFloat ? 1e-5 : 1e-2;
    for (int64_t count : {1, 17, 1024, 100003}) {
      at::Tensor x = (at::randn({count}) * 4).to(type), gradient = at::randn({count}).to(type);
      at::Tensor exact = x.to(at::kDouble);
      EXPECT_TRUE(at::allclose(gelu_tanh(x).to(at::kDouble), at::gelu(exact, "tanh"), bound, bound))
          << at::toString(type) << " " << count;
      EXPECT_TRUE(at::allclose(gelu_tanh_backward(x, gradient).to(at::kDouble),
                               at::gelu_backward(gradient.to(at::kDouble), exact, "tanh"), bound,
                               bound))
          << at::toString(type) << " " << count;
    }
  }
}

TEST(Gelu, ExtremeValues) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (at::ScalarType type : {at::kDouble, at::kFloat}) {
    at::Tensor x = at::tensor({-kInfinity, -1e30, -50.0, 0.0, 50.0, 1e30, kInfinity}).to(type);
    // Minus infinity times a sigmoid of 0 counts as 0.
    at::Tensor want = at::tensor({0.0, 0.0, 0.0, 0.0, 50.0, 1e30, kInfinity}).to(type);
    EXPECT_TRUE(at::equal(gelu_tanh(x), want)) << gelu_tanh(x);
    at::Tensor slope = gelu_tanh_backward(x, at::ones_like(x)).narrow(0, 2, 3);
    EXPECT_TRUE(at::equal(slope, at::tensor({0.0, 0.5, 1.0}).to(type))) << slope;
    at::Tensor nan = at::full({3}, std::numeric_limits<double>::quiet_NaN(), type);
    EXPECT_TRUE(gelu_tanh(nan).isnan().all().item<bool>());
    EXPECT_TRUE(gelu_tanh_backward(nan, at::ones_like(nan)).isnan().all().item<bool>());
  }
}

TEST(Gelu, BitsDependNeitherOnPlaceNorOnThreads) {
  const int threads = at::get_num_threads();
  at::Tensor x = at::randn({200003}), gradient = at::randn({200003});
  at::set_num_threads(1);
  at::Tensor forward = gelu_tanh(x), backward = gelu_tanh_backward(x, gradient);
  at::set_num_threads(3);
  EXPECT_TRUE(at::equal(gelu_tanh(x), forward));
  EXPECT_TRUE(at::equal(gelu_tanh_backward(x, gradient), backward));
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(gelu_tanh(x.narrow(0, 1001, 5003)), forward.narrow(0, 1001, 5003)));
  EXPECT_TRUE(at::equal(gelu_tanh_backward(x.narrow(0, 77, 1500), gradient.narrow(0, 77, 1500)),
                        backward.narrow(0, 77, 1500)));
}

TEST(Gelu, RefusesWhatItCannotRead) {
  EXPECT_THROW(gelu_tanh(at::zeros({3}, at::kLong)), base::InternalError);
  EXPECT_THROW(gelu_tanh(at::zeros({3, 2}).t()), base::InternalError);
  EXPECT_THROW(gelu_tanh_backward(at::zeros({3}), at::zeros({4})), base::InternalError);
}

TEST(Gelu, DifferentiatesAsAnActivation) {
  at::Tensor x = at::randn({5, 6}, at::kDouble).requires_grad_(true);
  at::Tensor twin = x.detach().clone().requires_grad_(true),
             weight = at::randn({6, 5}, at::kDouble);
  nn::find_activation("gelu_new")(x.t()).mul(weight).sum().backward();
  at::gelu(twin.t(), "tanh").mul(weight).sum().backward();
  EXPECT_TRUE(at::allclose(x.grad(), twin.grad(), 1e-13, 1e-13));
}

}  // namespace
}  // namespace trireme::kernels
