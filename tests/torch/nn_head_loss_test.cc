// The cross entropy that is made with the head's scores, against the one of whole logits.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/data/batch.h"
#include "trireme/dist/redistribute.h"
#include "trireme/dist/world.h"
#include "trireme/kernels/allocator.h"
#include "trireme/nn/loss.h"
#include "trireme/nn/parametric.h"

namespace trireme::nn {
namespace {

constexpr double kFactor = 0.25;

Param parameter(const layout::Shape& shape, at::ScalarType type, double size) {
  Param p;
  p.spec = {.name = "p", .shape = shape, .dtype = dist::dtype_of(at::empty({}, type))};
  p.data = (at::randn(shape, at::kDouble) * size).to(type);
  p.grad = at::full(shape, 7, wide_type(p.spec.dtype));  // whatever was there
  return p;
}

struct Made {
  at::Tensor loss, x, table, bias;
};

// Both ways add to gradients that hold one contribution already, or to none.
Made make(const at::Tensor& x, Param table, std::optional<Param> bias, double cap, const at::Tensor& labels, bool fused,
          bool begun, int64_t elements, const comm::Comm& tp = {}, int64_t first = 0) {
  const Batch batch;
  Context context{.batch = batch, .anchor = at::zeros({}).requires_grad_(true)};
  table.grad = table.grad.clone();
  table.grad_begun = begun;
  if (bias) bias->grad = bias->grad.clone(), bias->grad_begun = begun;
  Param* of_bias = bias ? &*bias : nullptr;
  at::Tensor leaf = x.detach().clone().requires_grad_(true), loss;
  if (fused) {
    context.loss_request = {.factor = kFactor};
    loss = head_cross_entropy_sum(
        leaf, {.table = &table, .bias = of_bias, .soft_cap = cap, .first = first, .elements = elements}, labels, tp, context);
  } else {
    at::Tensor logits = linear(leaf, &table, of_bias, Orientation::out_in, context);
    if (cap > 0) logits = at::tanh(logits / cap) * cap;
    loss = cross_entropy_sum(logits, labels, first, tp);
  }
  (loss * kFactor).backward();
  EXPECT_EQ(table.contributions, 1);
  if (bias) {
    EXPECT_EQ(bias->contributions, 1);
  }
  return {loss.detach(), leaf.grad(), table.grad, bias ? bias->grad : at::Tensor()};
}

void expect_near(const at::Tensor& got, const at::Tensor& want, double bound, const char* what) {
  const double size = want.abs().max().item<double>();
  EXPECT_LE((got.to(at::kDouble) - want.to(at::kDouble)).abs().max().item<double>(), bound * size) << what;
}

TEST(HeadLoss, EqualsTheOneOfWholeLogits) {
  at::manual_seed(1);
  for (at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16})
    for (bool biased : {false, true})
      for (double cap : {0.0, 3.0})
        for (bool begun : {false, true})
          for (int64_t elements : {int64_t{1} << 30, int64_t{131 * 4}, int64_t{1}}) {
            const double bound = type == at::kDouble ? 1e-13 : type == at::kFloat ? 5e-6 : 3e-2;
            at::Tensor x = at::randn({3, 7, 12}, at::kDouble).to(type);
            const Param table = parameter({131, 12}, type, 1);
            std::optional<Param> bias;
            if (biased) bias = parameter({131}, type, 1);
            at::Tensor labels = at::randint(131, {3, 7}, at::kLong);
            labels[0][1] = labels[2][6] = labels[2][5] = data::kIgnoreLabel;
            const Made want = make(x, table, bias, cap, labels, false, begun, 0),
                       got = make(x, table, bias, cap, labels, true, begun, elements);
            SCOPED_TRACE(fmt::format("{} bias {} cap {} begun {} elements {}", c10::toString(type), biased, cap, begun,
                                     elements));
            expect_near(got.loss, want.loss, bound, "loss");
            expect_near(got.x, want.x, bound, "x");
            expect_near(got.table, want.table, bound, "table");
            if (biased) expect_near(got.bias, want.bias, bound, "bias");
          }
}

TEST(HeadLoss, NothingThatCounts) {
  const Param table = parameter({5, 3}, at::kDouble, 1);
  at::Tensor labels = at::full({2, 2}, data::kIgnoreLabel, at::kLong);
  const Made got = make(at::randn({2, 2, 3}, at::kDouble), table, parameter({5}, at::kDouble, 1), 0, labels, true, false, 1);
  EXPECT_EQ(got.loss.item<double>(), 0);
  for (const at::Tensor& t : {got.x, got.table, got.bias}) EXPECT_EQ(t.abs().sum().item<double>(), 0);
}

TEST(HeadLoss, AVocabularySplitUnevenly) {
  constexpr int64_t kVocab = 131;
  at::manual_seed(2);
  at::Tensor x = at::randn({4, 9, 12}, at::kDouble), labels = at::randint(kVocab, {4, 9}, at::kLong);
  labels[1][2] = data::kIgnoreLabel;
  const Param table = parameter({kVocab, 12}, at::kDouble, 1);
  const Made want = make(x, table, {}, 0, labels, false, false, 0);
  for (int ranks : {2, 3}) {
    std::vector<Made> made(ranks);
    dist::run_ranks(ranks, [&](dist::World& world) {
      const dist::DeviceMesh mesh(world, layout::Mesh({.pp = 1, .dp = 1, .tp = ranks}));
      const layout::Range own = layout::split_range(kVocab, ranks, world.rank());
      Param part = table;
      part.data = table.data.narrow(0, own.begin, own.size()).clone();
      part.grad = at::zeros_like(part.data);
      made[world.rank()] = make(x, part, {}, 0, labels, true, false, 400, mesh.tp, own.begin);
    });
    at::Tensor of_x = made[0].x, of_table = made[0].table;
    for (int r = 1; r < ranks; ++r) of_x = of_x + made[r].x, of_table = at::cat({of_table, made[r].table});
    for (const Made& m : made) expect_near(m.loss, want.loss, 1e-13, "loss");
    expect_near(of_x, want.x, 1e-13, "x");
    expect_near(of_table, want.table, 1e-13, "table");
  }
}

TEST(HeadLoss, WithoutAFactorThereIsNoBackwardPass) {
  const Batch batch;
  Context context{.batch = batch, .anchor = at::zeros({}).requires_grad_(true), .loss_request = LossRequest{}};
  Param table = parameter({31, 4}, at::kDouble, 1);
  at::Tensor x = at::randn({3, 4}, at::kDouble).requires_grad_(true), labels = at::randint(31, {3}, at::kLong);
  at::Tensor loss = head_cross_entropy_sum(x, {.table = &table}, labels, {}, context);
  at::Tensor want = cross_entropy_sum(at::mm(x, table.data.t()).detach(), labels, 0, {});
  EXPECT_NEAR(loss.item<double>(), want.item<double>(), 1e-12);
  EXPECT_EQ(table.contributions, 0);
  EXPECT_THROW(loss.backward(), base::InternalError);
  context.loss_request->factor = 0.5;
  loss = head_cross_entropy_sum(x, {.table = &table}, labels, {}, context);
  EXPECT_THROW((loss * 0.25).backward(), base::InternalError);
}

// The bound of a vocabulary's head: 0.15 of what the logits alone would take.
TEST(HeadLoss, LogitsNeverLiveAsAWhole) {
  kernels::install_caching_allocator();
  constexpr int64_t kRows = 1024, kVocab = 50304, kFeatures = 64;
  Param table = parameter({kVocab, kFeatures}, at::kFloat, 1);
  at::Tensor x = at::randn({kRows, kFeatures}), labels = at::randint(kVocab, {kRows}, at::kLong);
  const Batch batch;
  const Context context{.batch = batch,
                        .anchor = at::zeros({}).requires_grad_(true),
                        .loss_request = LossRequest{.factor = 1}};
  x.requires_grad_(true);
  const int64_t before = kernels::memory_counters().live;
  kernels::reset_peak();
  head_cross_entropy_sum(x, {.table = &table}, labels, {}, context).backward();
  const auto peak = static_cast<double>(kernels::memory_counters().peak - before);
  EXPECT_LE(peak, 0.15 * kRows * kVocab * 4) << peak / (kRows * kVocab * 4);
}

}  // namespace
}  // namespace trireme::nn
