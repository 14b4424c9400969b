#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/philox.h"
#include "trireme/kernels/dropout.h"

namespace trireme::kernels {
namespace {

constexpr double kP = 0.3;

// The mapping from coordinates to words, element by element.
bool kept(uint64_t key, int64_t sample, int64_t b, int64_t c, int64_t d, double p = kP) {
  auto words = base::philox(key, {static_cast<uint32_t>(d / 4), static_cast<uint32_t>(c),
                                  static_cast<uint32_t>(b), static_cast<uint32_t>(sample)});
  return words[d % 4] >= static_cast<uint64_t>(p * 0x1p32);
}

void expect_mask(at::IntArrayRef shape, at::ScalarType type, const MaskCoordinates& where) {
  at::Tensor x = (at::rand(shape) + 0.5).to(type), out = at::empty_like(x);
  dropout(x, out, kP, where);
  at::Tensor x4 = x.dim() == 2 ? x.unsqueeze(1).unsqueeze(1) : x.dim() == 3 ? x.unsqueeze(1) : x;
  at::Tensor expected = at::zeros_like(x4);
  auto mask = at::empty(x4.sizes(), at::kBool);
  auto m = mask.accessor<bool, 4>();
  for (int64_t i = 0; i < x4.size(0); ++i)
    for (int64_t j = 0; j < x4.size(1); ++j)
      for (int64_t k = 0; k < x4.size(2); ++k)
        for (int64_t l = 0; l < x4.size(3); ++l)
          m[i][j][k][l] = kept(where.key, where.samples[i].item<int64_t>(), where.origin_b + j,
                               where.origin_c + k, where.origin_d + l);
  at::Tensor scaled = type == at::kDouble
                          ? x4 * (1 / (1 - kP))
                          : (x4.to(at::kFloat) * static_cast<float>(1 / (1 - kP))).to(type);
  expected = at::where(mask, scaled, expected).reshape(shape);
  EXPECT_TRUE(at::equal(out, expected)) << shape << " " << c10::toString(type);
}

TEST(Dropout, MasksAreAFunctionOfCoordinates) {
  MaskCoordinates where{.key = 0x123456789ABCDEF0,
                        .samples = at::tensor({7, 0, 123456}, at::kLong)};
  for (auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    expect_mask({3, 5}, type, where);
    expect_mask({3, 4, 130}, type, where);
    expect_mask({3, 2, 3, 67}, type, where);
  }
  where.origin_b = 3, where.origin_c = 5;
  for (int64_t origin : {1, 2, 3, 4, 1021}) {
    where.origin_d = origin;
    expect_mask({3, 2, 3, 1}, at::kFloat, where);
    expect_mask({3, 2, 2, 1030}, at::kFloat, where);  // more than the words made at a time
  }
}

// Frozen: another mapping would change every run with dropout.
TEST(Dropout, KnownAnswer) {
  at::Tensor x = at::ones({1, 16}), out = at::empty_like(x);
  dropout(x, out, 0.5, {.key = 42, .samples = at::tensor({3}, at::kLong)});
  std::string mask;
  for (int i = 0; i < 16; ++i) mask += out[0][i].item<float>() == 0 ? '0' : '2';
  EXPECT_EQ(mask, "2202022200202202");
}

TEST(Dropout, PartsOfATensorDrawThePartsOfItsMask) {
  auto samples = at::arange(4, at::kLong);
  at::Tensor x = at::rand({4, 6, 50, 70}), whole = at::empty_like(x);
  dropout(x, whole, kP, {.key = 9, .samples = samples});
  at::Tensor part = x.slice(0, 1, 3).slice(1, 2, 5).slice(2, 10, 47).slice(3, 33, 70).contiguous();
  dropout(
      part, part, kP,
      {.key = 9, .samples = samples.slice(0, 1, 3), .origin_b = 2, .origin_c = 10, .origin_d = 33});
  EXPECT_TRUE(
      at::equal(part, whole.slice(0, 1, 3).slice(1, 2, 5).slice(2, 10, 47).slice(3, 33, 70)));
}

TEST(Dropout, KeepsTheRightShareOnAnyNumberOfThreads) {
  at::Tensor x = at::ones({64, 128, 64}), one = at::empty_like(x), two = at::empty_like(x);
  MaskCoordinates where{.key = 1, .samples = at::arange(64, at::kLong)};
  int before = at::get_num_threads();
  at::set_num_threads(1);
  dropout(x, one, 0.1, where);
  at::set_num_threads(2);
  dropout(x, two, 0.1, where);
  at::set_num_threads(before);
  EXPECT_TRUE(at::equal(one, two));
  EXPECT_NEAR(one.mean().item<double>(), 1, 0.003);
}

TEST(Dropout, EdgesAndRefusals) {
  auto samples = at::arange(2, at::kLong);
  at::Tensor x = at::rand({2, 9}), out = at::empty_like(x);
  dropout(x, out, 0, {.samples = samples});
  EXPECT_TRUE(at::equal(x, out));
  dropout(x, out, 1, {.samples = samples});
  EXPECT_EQ(out.abs().sum().item<float>(), 0);
  EXPECT_THROW(dropout(x, out, 1.5, {.samples = samples}), base::ConfigError);
  EXPECT_THROW(dropout(x, out, 0.5, {.samples = at::arange(3, at::kLong)}), base::InternalError);
  EXPECT_THROW(dropout(x, out, 0.5, {.samples = samples + (int64_t{1} << 32)}),
               base::InternalError);
  at::Tensor integers = at::ones({2, 9}, at::kLong);
  EXPECT_THROW(dropout(integers, integers, 0.5, {.samples = samples}), base::InternalError);
  at::Tensor transposed = at::rand({9, 2}).t();
  EXPECT_THROW(dropout(transposed, out, 0.5, {.samples = samples}), base::InternalError);
}

}  // namespace
}  // namespace trireme::kernels
