#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "trireme/base/philox.h"
#include "trireme/kernels/expressions.h"

namespace trireme::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr at::ScalarType kTypes[] = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};

double bound_of(at::ScalarType type) {
  return type == at::kDouble ? 1e-13 : type == at::kFloat ? 2e-6 : type == at::kHalf ? 2e-3 : 1e-2;
}

void expect_close(const at::Tensor& a, const at::Tensor& b, double bound, const std::string& what) {
  EXPECT_TRUE(at::allclose(a.to(at::kDouble), b.to(at::kDouble), bound, bound, true))
      << what << ": " << (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

TEST(Expressions, PhiloxIsTheOneOfTheBase) {
  const uint64_t key = 0xFEDCBA9876543210;
  const at::Tensor places = at::tensor(std::vector<int64_t>{0, 1, 77, 0x7FFFFFFF, 0xFFFFFFFF}, at::kLong);
  const at::Tensor one = at::tensor(std::vector<int64_t>{0xFFFFFFF0}, at::kLong), two = at::tensor(std::vector<int64_t>{5}, at::kLong);
  const auto words = expressions::philox(key, {places, one, two, places});
  for (int64_t i = 0; i < places.numel(); ++i) {
    const auto place = static_cast<uint32_t>(places[i].item<int64_t>());
    const auto want = base::philox(key, {place, 0xFFFFFFF0, 5, place});
    for (size_t w = 0; w < 4; ++w) EXPECT_EQ(words[w][i].item<int64_t>(), int64_t{want[w]}) << i << " " << w;
  }
}

TEST(Expressions, DropoutHasTheKernelsBits) {
  MaskCoordinates where{.key = 0x123456789ABCDEF0, .samples = at::tensor({7, 0, 123456}, at::kLong)};
  const std::vector<std::vector<int64_t>> shapes = {{3, 5}, {3, 4, 130}, {3, 2, 3, 67}, {3, 2, 2, 1030}};
  for (int64_t origin : {0, 1, 2, 3, 1021}) {
    where.origin_b = origin, where.origin_c = 2 * origin, where.origin_d = origin;
    for (at::ScalarType type : kTypes)
      for (const auto& shape : shapes) {
        const at::Tensor x = at::randn(shape).to(type);
        at::Tensor fast = at::empty_like(x), slow = at::empty_like(x);
        dropout(x, fast, 0.3, where);
        expressions::dropout(x, slow, 0.3, where);
        EXPECT_TRUE(at::equal(fast, slow)) << c10::toString(type) << " origin " << origin;
      }
  }
}

TEST(Expressions, GeluFollowsTheKernel) {
  for (at::ScalarType type : kTypes) {
    const at::Tensor x = (at::randn({1003}) * 4).to(type), gradient = at::randn({1003}).to(type);
    expect_close(expressions::gelu_tanh(x), gelu_tanh(x), bound_of(type), "gelu");
    // LibTorch's 1 - tanh² loses digits for large x: each error is one of the slope, times the gradient.
    const double bound = bound_of(type) * (1 + gradient.abs().max().item<double>());
    expect_close(expressions::gelu_tanh_backward(x, gradient), gelu_tanh_backward(x, gradient), bound, "its gradient");
  }
}

TEST(Expressions, SoftmaxFollowsTheKernel) {
  for (at::ScalarType type : kTypes)
    for (int64_t columns : {1, 7, 1500}) {
      at::Tensor logits = (at::randn({6, columns}) * 3).to(type);
      logits[2].fill_(-kInfinity);
      const at::Tensor terms = softmax_terms(logits), other = expressions::softmax_terms(logits);
      expect_close(other, terms, type == at::kDouble ? 1e-13 : 2e-6, "terms");
      at::Tensor peak = terms.select(1, 0).contiguous(), sum = terms.select(1, 1).contiguous();
      peak[2] = 0, sum[2] = 1;
      const at::Tensor scale = at::tensor({0.5, 0.0, 1.0, 2.0, 0.0, 1.0}, at::kDouble);
      const at::Tensor target = at::tensor(std::vector<int64_t>{0, 0, -1, columns - 1, columns, -1}, at::kLong);
      at::Tensor fast = logits.clone(), slow = logits.clone();
      fast[1].fill_(std::numeric_limits<double>::quiet_NaN());  // a row that counts nothing
      slow[1].fill_(std::numeric_limits<double>::quiet_NaN());
      softmax_gradient(fast, peak, sum, scale, target);
      expressions::softmax_gradient(slow, peak, sum, scale, target);
      expect_close(slow, fast, bound_of(type), "gradient");
    }
}

TEST(Expressions, SoftmaxSeesWhatIsNotFinite) {
  at::Tensor logits = at::randn({3, 9});
  logits[0][4] = std::numeric_limits<double>::quiet_NaN();
  logits[1][8] = kInfinity;
  const at::Tensor sums = expressions::softmax_terms(logits).select(1, 1);
  EXPECT_TRUE(sums[0].isnan().item<bool>());
  EXPECT_TRUE(sums[1].isnan().item<bool>());
  EXPECT_FALSE(sums[2].isnan().item<bool>());
  EXPECT_TRUE(at::equal(expressions::softmax_terms(at::empty({2, 0})), softmax_terms(at::empty({2, 0}))));
}

// A piece on memory of its own, which both ways of stepping get a copy of.
struct Arrays {
  at::Tensor param, grad, first, second;
  explicit Arrays(at::ScalarType type)
      : param(at::randn({1003}).to(type)), grad(at::randn({1003}).to(type)), first(at::randn({1003}).to(type)),
        second(at::rand({1003}).to(type)) {}
  Arrays copy() const {
    Arrays other = *this;
    for (at::Tensor* t : {&other.param, &other.grad, &other.first, &other.second}) *t = t->clone();
    return other;
  }
  Piece piece(int states) {
    return {.param = param.mutable_data_ptr(), .grad = grad.const_data_ptr(),
            .state = {states > 0 ? first.mutable_data_ptr() : nullptr, states > 1 ? second.mutable_data_ptr() : nullptr},
            .count = param.numel(), .weight_decay = 0.1, .lr_scale = 0.5};
  }
};

template <class Fast, class Slow>
void compare_steps(int states, const Fast& fast, const Slow& slow, const char* what) {
  for (at::ScalarType type : {at::kDouble, at::kFloat}) {
    Arrays a(type), b = a.copy();
    for (int step = 1; step <= 3; ++step) {
      const Piece pa = a.piece(states), pb = b.piece(states);
      fast(std::span(&pa, 1), type, step);
      slow(std::span(&pb, 1), type, step);
    }
    const double bound = type == at::kDouble ? 1e-13 : 2e-6;
    expect_close(b.param, a.param, bound, what);
    expect_close(b.first, a.first, bound, what);
    expect_close(b.second, a.second, bound, what);
  }
}

TEST(Expressions, UpdatesFollowTheKernels) {
  constexpr double kScale = 0.7;
  for (bool decoupled : {true, false}) {
    auto rule = [&](int step) { return Adam{.lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-4, .step = step, .decoupled = decoupled}; };
    compare_steps(2, [&](auto p, auto t, int s) { adam(p, t, rule(s), kScale); },
                  [&](auto p, auto t, int s) { expressions::adam(p, t, rule(s), kScale, c10::kCPU); }, "adam");
  }
  for (int states : {0, 1})
    for (bool nesterov : {false, true}) {
      const Sgd rule{.lr = 0.01, .momentum = 0.9, .nesterov = nesterov};
      compare_steps(states, [&](auto p, auto t, int) { sgd(p, t, rule, kScale); },
                    [&](auto p, auto t, int) { expressions::sgd(p, t, rule, kScale, c10::kCPU); }, "sgd");
    }
  const Lion rule{.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99};
  compare_steps(1, [&](auto p, auto t, int) { lion(p, t, rule, kScale); },
                [&](auto p, auto t, int) { expressions::lion(p, t, rule, kScale, c10::kCPU); }, "lion");
  compare_steps(0, [&](auto p, auto t, int) { average(p, t, 0.9); },
                [&](auto p, auto t, int) { expressions::average(p, t, 0.9, c10::kCPU); }, "average");
}

TEST(Expressions, NormsFollowTheKernels) {
  for (at::ScalarType type : {at::kDouble, at::kFloat})
    for (Norm kind : {Norm::absolute, Norm::squares, Norm::largest}) {
      Arrays a(type), b(type);
      const Piece pieces[] = {a.piece(0), {}, b.piece(0)};
      const NormTerm fast = norm_term(pieces, type, kind), slow = expressions::norm_term(pieces, type, kind, c10::kCPU);
      EXPECT_NEAR(slow.value / fast.value, 1, 1e-12);
      EXPECT_TRUE(slow.finite);
      for (double value : {kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN()}) {
        b.grad[1002] = value;
        EXPECT_FALSE(expressions::norm_term(pieces, type, kind, c10::kCPU).finite) << value;
      }
    }
}

}  // namespace
}  // namespace trireme::kernels
