// Rules that look at whole tensors against plain references, in fp64, on one rank. Each parameter is
// cut into two segments; meshes are the business of tests/ranks.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <functional>

#include "trireme/base/error.h"
#include "trireme/optim/optimizers.h"

namespace trireme::optim {
namespace {

constexpr double kLr = 0.02, kDecay = 0.1, kScale = 0.5;

struct Rig {
  config::Optim options;
  dist::DeviceMesh mesh;
  std::deque<nn::Param> params;
  std::unique_ptr<Optimizer> rule;
  std::vector<Segment> segments;

  Rig(const config::Optim& given, const std::vector<layout::Shape>& shapes) : options(given) {
    std::vector<WholeTensors::Place> places;
    for (size_t i = 0; i < shapes.size(); ++i) {
      nn::Param& param = params.emplace_back();
      param.spec = {.name = fmt::format("p{}", i), .shape = shapes[i], .dtype = base::DType::f64};
      param.slice = layout::whole(shapes[i]);
      param.data = at::randn(shapes[i], at::kDouble);
      param.grad = at::randn(shapes[i], at::kDouble);
      places.push_back({&param, {{0, param.slice.count()}}});
    }
    rule = make_optimizer(options, {mesh, places});
    for (nn::Param& param : params) {
      const int64_t count = param.slice.count();
      std::vector<at::Tensor> states;
      for (const State& state : rule->states(param.spec))
        states.push_back(
            at::zeros({state.shape ? layout::element_count(*state.shape) : count}, at::kDouble));
      for (layout::Range r : {layout::Range{0, count / 3}, layout::Range{count / 3, count}}) {
        Segment segment{.param = &param,
                        .flat = r,
                        .data = param.data.flatten().narrow(0, r.begin, r.size()),
                        .grad = param.grad.flatten().narrow(0, r.begin, r.size()),
                        .state = {},
                        .weight_decay = kDecay};
        for (const at::Tensor& state : states)
          segment.state.push_back(
              state.numel() == count ? state.narrow(0, r.begin, r.size()) : state);
        segments.push_back(std::move(segment));
      }
    }
  }
};

/// Steps a parameter by a reference whose state starts undefined: (p, g, step, state) -> p.
using Reference =
    std::function<at::Tensor(const at::Tensor&, const at::Tensor&, int64_t, std::vector<at::Tensor>&)>;

void expect_equal(const config::Optim& options, const std::vector<layout::Shape>& shapes,
                  const Reference& reference) {
  at::manual_seed(3);
  Rig rig(options, shapes);
  std::vector<at::Tensor> wanted;
  std::vector<std::vector<at::Tensor>> states(shapes.size(), std::vector<at::Tensor>(2));
  for (const nn::Param& param : rig.params) wanted.push_back(param.data.clone());
  for (int64_t step = 1; step <= 5; ++step) {
    for (nn::Param& param : rig.params) param.grad.normal_();
    for (size_t i = 0; i < wanted.size(); ++i)
      wanted[i] = reference(wanted[i], rig.params[i].grad * kScale, step, states[i]);
    rig.rule->step(rig.segments, kLr, step, kScale);
    for (size_t i = 0; i < wanted.size(); ++i)
      EXPECT_TRUE(at::allclose(rig.params[i].data, wanted[i], 1e-11, 1e-11))
          << options.name << ", parameter " << i << ", step " << step;
  }
}

at::Tensor& state_of(std::vector<at::Tensor>& states, size_t index, const at::Tensor& like) {
  if (!states[index].defined()) states[index] = at::zeros_like(like);
  return states[index];
}

at::Tensor adamw(const at::Tensor& p, const at::Tensor& g, int64_t step,
                 std::vector<at::Tensor>& states) {
  at::Tensor &m = state_of(states, 0, p), &v = state_of(states, 1, p);
  m = 0.9 * m + 0.1 * g;
  v = 0.95 * v + 0.05 * g * g;
  const double c1 = 1 - std::pow(0.9, step), c2 = 1 - std::pow(0.95, step);
  return p * (1 - kLr * kDecay) - kLr * (m / c1) / ((v / c2).sqrt() + 1e-8);
}

TEST(Rules, Lion) {
  expect_equal({.name = "lion", .betas = {0.9, 0.95}}, {{17, 5}, {40}},
               [](const at::Tensor& p, const at::Tensor& g, int64_t, std::vector<at::Tensor>& s) {
                 at::Tensor& m = state_of(s, 0, p);
                 const at::Tensor sign = (0.9 * m + 0.1 * g).sign();
                 m = 0.95 * m + 0.05 * g;
                 return p * (1 - kLr * kDecay) - kLr * sign;
               });
}

TEST(Rules, Lamb) {
  expect_equal({.name = "lamb", .betas = {0.9, 0.95}}, {{17, 5}, {40}, {3, 4, 5}},
               [](const at::Tensor& p, const at::Tensor& g, int64_t step,
                  std::vector<at::Tensor>& s) {
                 at::Tensor &m = state_of(s, 0, p), &v = state_of(s, 1, p);
                 m = 0.9 * m + 0.1 * g;
                 v = 0.95 * v + 0.05 * g * g;
                 const double c1 = 1 - std::pow(0.9, step), c2 = 1 - std::pow(0.95, step);
                 const at::Tensor update = m / c1 / ((v / c2).sqrt() + 1e-8) + kDecay * p;
                 return p - kLr * p.norm() / update.norm() * update;
               });
}

TEST(Rules, LambOfAZeroParameterTakesThePlainStep) {
  Rig rig({.name = "lamb", .betas = {0.9, 0.95}}, {{6}});
  rig.params[0].data.zero_();
  rig.rule->step(rig.segments, kLr, 1, kScale);
  EXPECT_TRUE(at::allclose(rig.params[0].data, -kLr * rig.params[0].grad.sign(), 1e-3, 1e-3));
}

// As torch.optim.Adafactor computes it.
TEST(Rules, Adafactor) {
  expect_equal(
      {.name = "adafactor"}, {{17, 5}, {40}, {3, 4, 5}},
      [](const at::Tensor& p, const at::Tensor& g, int64_t step, std::vector<at::Tensor>& s) {
        const double eps = std::numeric_limits<double>::epsilon();
        const double share = std::pow(static_cast<double>(step), -0.8);
        const double count = static_cast<double>(p.numel());
        const double alpha = std::max(1e-3, p.norm().item<double>() / std::sqrt(count)) *
                             std::min(kLr, 1 / std::sqrt(static_cast<double>(step)));
        at::Tensor variance;
        if (p.dim() > 1) {
          at::Tensor rows = (g * g).mean(-1, true), columns = (g * g).mean(-2, true);
          at::Tensor &r = state_of(s, 0, rows), &c = state_of(s, 1, columns);
          r = at::lerp(r, rows, share);
          c = at::lerp(c, columns, share);
          variance = at::matmul(r, c) / r.mean(-2, true).clamp_min(eps);
        } else {
          at::Tensor& v = state_of(s, 0, p);
          v = at::lerp(v, g * g, share);
          variance = v;
        }
        const at::Tensor update = variance.clamp_min(eps * eps).rsqrt() * g;
        const double clip = std::max(1.0, update.norm().item<double>() / std::sqrt(count));
        return p * (1 - kLr * kDecay) - alpha / clip * update;
      });
}

// As torch.optim.Muon computes it with adjust_lr_fn = "match_rms_adamw", but in the matrix's type.
TEST(Rules, Muon) {
  const auto muon = [](const at::Tensor& p, const at::Tensor& g, int64_t step,
                       std::vector<at::Tensor>& s) {
    if (p.dim() != 2) return adamw(p, g, step, s);
    at::Tensor& momentum = state_of(s, 0, p);
    momentum = at::lerp(momentum, g, 0.05);
    at::Tensor x = at::lerp(g, momentum, 0.95);
    if (p.size(0) > p.size(1)) x = x.t();
    x = x / x.norm();
    for (int i = 0; i < 5; ++i) {
      const at::Tensor a = at::mm(x, x.t());
      x = 3.4445 * x + at::mm(-4.7750 * a + 2.0315 * at::mm(a, a), x);
    }
    if (p.size(0) > p.size(1)) x = x.t();
    const double longer = static_cast<double>(std::max(p.size(0), p.size(1)));
    return p * (1 - kLr * kDecay) - kLr * 0.2 * std::sqrt(longer) * x;
  };
  config::Optim options{.name = "muon", .betas = {0.9, 0.95}};
  expect_equal(options, {{17, 5}, {4, 9}, {40}, {3, 4, 5}}, muon);
  options.muon_exclude = {"p0"};
  expect_equal(options, {{17, 5}}, adamw);
}

}  // namespace
}  // namespace trireme::optim
