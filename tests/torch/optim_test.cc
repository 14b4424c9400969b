#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/optim/clip.h"
#include "trireme/optim/groups.h"
#include "trireme/optim/optimizers.h"

namespace trireme::optim {
namespace {

Segment segment_of(at::Tensor data, at::Tensor grad, std::vector<at::Tensor> state, double decay) {
  return {.param = nullptr,
          .flat = {0, data.numel()},
          .data = data,
          .grad = grad,
          .state = std::move(state),
          .weight_decay = decay};
}

// PyTorch's own fused step is the reference.
TEST(AdamW, StepsAsPyTorchDoes) {
  config::Optim options{.betas = {0.9, 0.95}, .eps = 1e-8};
  auto optimizer = make_optimizer(options);
  EXPECT_THAT(optimizer->state_names(), testing::ElementsAre("exp_avg", "exp_avg_sq"));
  for (at::ScalarType type : {at::kFloat, at::kDouble}) {
    const int64_t count = 40007;
    at::Tensor p = at::randn({count}, type), m = at::zeros_like(p), v = at::zeros_like(p);
    std::vector<at::Tensor> rp = {p.clone()}, rm = {m.clone()}, rv = {v.clone()};
    for (int64_t step = 1; step <= 5; ++step) {
      at::Tensor g = at::randn({count}, type);
      const double factor = step == 3 ? 0.25 : 1, lr = 1e-3 * static_cast<double>(step);
      const Segment segment = segment_of(p, g, {m, v}, 0.1);
      optimizer->step({&segment, 1}, lr, step, factor);
      std::vector<at::Tensor> rg = {g * factor}, none,
                              steps = {at::tensor(static_cast<float>(step))};
      at::_fused_adamw_(rp, rg, rm, rv, none, steps, lr, 0.9, 0.95, 0.1, 1e-8, false, false);
    }
    const double bound = type == at::kFloat ? 1e-6 : 1e-14;
    EXPECT_TRUE(at::allclose(p, rp[0], bound, bound));
    EXPECT_TRUE(at::allclose(m, rm[0], bound, bound));
    EXPECT_TRUE(at::allclose(v, rv[0], bound, bound));
  }
}

// The decay is a part of the gradient.
TEST(Adam, StepsAsPyTorchDoes) {
  auto optimizer = make_optimizer({.name = "adam", .betas = {0.9, 0.95}});
  at::Tensor p = at::randn({1003}, at::kDouble), m = at::zeros_like(p), v = at::zeros_like(p);
  std::vector<at::Tensor> rp = {p.clone()}, rm = {m.clone()}, rv = {v.clone()}, none;
  for (int64_t step = 1; step <= 5; ++step) {
    at::Tensor g = at::randn_like(p);
    const Segment segment = segment_of(p, g, {m, v}, 0.1);
    optimizer->step({&segment, 1}, 1e-2, step, 0.5);
    std::vector<at::Tensor> rg = {g * 0.5}, steps = {at::tensor(static_cast<float>(step))};
    at::_fused_adam_(rp, rg, rm, rv, none, steps, 1e-2, 0.9, 0.95, 0.1, 1e-8, false, false);
  }
  EXPECT_TRUE(at::allclose(p, rp[0], 1e-13, 1e-13));
  EXPECT_TRUE(at::allclose(v, rv[0], 1e-13, 1e-13));
}

TEST(Sgd, StepsAsPyTorchDoes) {
  struct {
    double momentum;
    bool nesterov;
  } const kinds[] = {{0, false}, {0.9, false}, {0.9, true}};
  for (const auto& [momentum, nesterov] : kinds) {
    auto optimizer =
        make_optimizer({.name = "sgd", .momentum = momentum, .nesterov = nesterov});
    EXPECT_EQ(optimizer->state_names().size(), momentum > 0 ? 1u : 0u);
    at::Tensor p = at::randn({1003}, at::kDouble), buffer = at::zeros_like(p);
    std::vector<at::Tensor> rp = {p.clone()}, rb = {at::zeros_like(p)};
    for (int64_t step = 1; step <= 5; ++step) {
      at::Tensor g = at::randn_like(p);
      const Segment segment =
          segment_of(p, g, momentum > 0 ? std::vector{buffer} : std::vector<at::Tensor>{}, 0.01);
      optimizer->step({&segment, 1}, 0.1, step, 0.5);
      std::vector<at::Tensor> rg = {g * 0.5};
      at::_fused_sgd_(rp, rg, momentum > 0 ? rb : std::vector<at::Tensor>{}, 0.01, momentum, 0.1,
                      0.0, nesterov, false, step == 1);
    }
    EXPECT_TRUE(at::allclose(p, rp[0], 1e-13, 1e-13)) << momentum << nesterov;
  }
}

TEST(Optimizers, APieceTakesTheBitsOfTheWhole) {
  for (const char* name : {"adamw", "adam", "sgd", "lion"}) {
    auto optimizer = make_optimizer({.name = name, .momentum = 0.9});
    const int64_t count = 100003;
    at::Tensor p = at::randn({count}), g = at::randn({count}), q = p.clone();
    std::vector<at::Tensor> state, other;
    for (size_t i = 0; i < optimizer->state_names().size(); ++i)
      state.push_back(at::rand({count})), other.push_back(state.back().clone());
    const Segment whole = segment_of(p, g, state, 0.1);
    optimizer->step({&whole, 1}, 0.01, 3, 0.7);
    std::vector<Segment> parts;
    for (layout::Range r : {layout::Range{0, 1}, {1, 33334}, {33334, 66700}, {66700, count}}) {
      std::vector<at::Tensor> views;
      for (const at::Tensor& tensor : other) views.push_back(tensor.narrow(0, r.begin, r.size()));
      parts.push_back(
          segment_of(q.narrow(0, r.begin, r.size()), g.narrow(0, r.begin, r.size()), views, 0.1));
    }
    at::set_num_threads(1);
    optimizer->step(parts, 0.01, 3, 0.7);
    EXPECT_TRUE(at::equal(p, q)) << name;
    for (size_t i = 0; i < state.size(); ++i) EXPECT_TRUE(at::equal(state[i], other[i])) << name;
  }
}

TEST(Optimizers, RefuseWhatTheyCannotDo) {
  EXPECT_THROW(make_optimizer({.name = "adagrad"}), base::ConfigError);
  EXPECT_THROW(make_optimizer({.betas = {0.9}}), base::ConfigError);
  EXPECT_THROW(make_optimizer({.betas = {0.9, 1.0}}), base::ConfigError);
  EXPECT_THROW(make_optimizer({.eps = -1}), base::ConfigError);
  EXPECT_THROW(make_optimizer({.name = "sgd", .momentum = 1}), base::ConfigError);
  EXPECT_THROW(make_optimizer({.name = "sgd", .nesterov = true}), base::ConfigError);
  EXPECT_THROW(make_optimizer({.name = "muon", .momentum = 1}), base::ConfigError);
  EXPECT_THROW(make_optimizer({.name = "lion", .betas = {0.9, 1.0}}), base::ConfigError);
}

TEST(Optimizers, DecayGoesByName) {
  const config::Optim options{.weight_decay = 1, .weight_decay_norm = 2, .weight_decay_bias = 3};
  EXPECT_EQ(weight_decay_of("transformer.wte.weight", options), 1);
  EXPECT_EQ(weight_decay_of("transformer.h.0.ln_1.weight", options), 2);
  EXPECT_EQ(weight_decay_of("transformer.ln_f.bias", options), 2);
  EXPECT_EQ(weight_decay_of("model.layers.0.input_layernorm.weight", options), 2);
  EXPECT_EQ(weight_decay_of("encoder.LayerNorm.bias", options), 2);
  EXPECT_EQ(weight_decay_of("transformer.h.0.attn.c_attn.bias", options), 3);
  EXPECT_EQ(weight_decay_of("bias", options), 3);
  EXPECT_EQ(weight_decay_of("normalizer_head.dense.weight", options), 1);
}

TEST(Groups, TheFirstPatternThatMatchesCounts) {
  const config::Optim options{.weight_decay = 1,
                              .groups = {{.pattern = "*.h.0.*", .freeze = true},
                                         {.pattern = "*.ln_?.weight", .weight_decay = 5},
                                         {.pattern = "*weight", .lr_scale = 0.5}}};
  EXPECT_TRUE(is_frozen({.name = "transformer.h.0.ln_1.weight"}, options));
  EXPECT_FALSE(is_frozen({.name = "transformer.h.1.ln_1.weight"}, options));
  EXPECT_EQ(weight_decay_of("transformer.h.1.ln_1.weight", options), 5);
  EXPECT_EQ(lr_scale_of("transformer.h.1.ln_1.weight", options), 1);
  EXPECT_EQ(weight_decay_of("transformer.wte.weight", options), 1);
  EXPECT_EQ(lr_scale_of("transformer.wte.weight", options), 0.5);
  EXPECT_EQ(lr_scale_of("transformer.h.1.ln_1.bias", options), 1);
}

TEST(Groups, RefuseWhatMatchesNothingOrLeavesNothing) {
  const std::vector<layout::ParamSpec> model = {{.name = "a.weight"}, {.name = "a.bias"}};
  EXPECT_NO_THROW(check_groups(model, {.groups = {{.pattern = "*.bias", .freeze = true}}}));
  EXPECT_THROW(check_groups(model, {.groups = {{.pattern = "b.*"}}}), base::ConfigError);
  EXPECT_THROW(check_groups(model, {.groups = {{.pattern = "*"}, {.pattern = "a.bias"}}}),
               base::ConfigError);
  EXPECT_THROW(check_groups(model, {.groups = {{.pattern = "*", .freeze = true}}}),
               base::ConfigError);
}

TEST(Clip, FactorBoundsTheNorm) {
  EXPECT_EQ(clip_factor(0.5, 1.0), 1);
  EXPECT_DOUBLE_EQ(clip_factor(4, 1.0), 1 / (4 + 1e-6));
  EXPECT_EQ(clip_factor(4, std::nullopt), 1);
}

TEST(Clip, NormsOfAllKinds) {
  at::Tensor a = at::randn({100001}), b = at::randn({7}, at::kDouble) * 5;
  const std::vector<Segment> segments = {segment_of(a, a, {}, 0), segment_of(b, b, {}, 0)};
  at::Tensor all = at::cat({a.to(at::kDouble), b});
  const comm::Comm alone;
  EXPECT_NEAR(total_norm(segments, {}, 1, alone), all.norm(1).item<double>(), 1e-7);
  EXPECT_NEAR(total_norm(segments, {}, 2, alone), all.norm(2).item<double>(), 1e-9);
  EXPECT_EQ(total_norm(segments, {}, std::numeric_limits<double>::infinity(), alone),
            all.abs().max().item<double>());
  EXPECT_THROW(total_norm(segments, {}, 3, alone), base::ConfigError);
}

}  // namespace
}  // namespace trireme::optim
