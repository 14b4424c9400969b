// Every fused kernel beside the plain operations that it stands for (Context::fuse): results and gradients.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <map>

#include "trireme/nn/attention.h"
#include "trireme/nn/layers.h"
#include "trireme/nn/rotary.h"

namespace trireme::nn {
namespace {

using Tensors = std::vector<at::Tensor>;

/// Inputs in fp64, and what is made of them; those of `wanting` want a gradient.
struct Pair {
  std::string name = {};
  Tensors inputs = {};
  std::function<at::Tensor(const Tensors& inputs, const Context& context)> run = {};
  size_t wanting = 1;
};

/// The result, then the gradients of the first `wanting` inputs.
Tensors run(const Pair& pair, at::ScalarType type, bool fuse, const Batch& batch) {
  Context context{.batch = batch, .random = {.seed = 5, .step = 2}, .anchor = at::zeros({}).requires_grad_(true), .fuse = fuse};
  Tensors given;
  for (size_t i = 0; i < pair.inputs.size(); ++i) {
    at::Tensor t = pair.inputs[i].is_floating_point() ? pair.inputs[i].to(type) : pair.inputs[i];
    given.push_back(i < pair.wanting ? t.detach().requires_grad_(true) : t);
  }
  at::Tensor out = pair.run(given, context);
  at::Tensor gradient = at::sin(at::arange(out.numel(), at::kDouble)).view(out.sizes()).to(out.scalar_type());
  Tensors made{out.detach()};
  const Tensors wanted(given.begin(), given.begin() + static_cast<std::ptrdiff_t>(pair.wanting));
  for (at::Tensor& t : torch::autograd::grad({out}, wanted, {gradient})) made.push_back(t);
  return made;
}

double error(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor a = got.to(at::kDouble), b = want.to(at::kDouble);
  return ((a - b).norm() / b.norm().clamp_min(1e-30)).item<double>();
}

Pair attention_pair(const std::string& name, int64_t heads, int64_t kv_heads, int64_t queries, int64_t keys,
                    const AttentionOptions& options, bool padded = false, const std::vector<int64_t>& bias = {},
                    bool bias_wants = true) {
  at::Tensor q = at::randn({2, queries, heads, 16}, at::kDouble).transpose(1, 2),
             k = at::randn({2, keys, kv_heads, 16}, at::kDouble).transpose(1, 2),
             v = at::randn({2, kv_heads, keys, 12}, at::kDouble);
  Pair pair{.name = "attention " + name, .inputs = {q, k, v}, .wanting = 3};
  at::Tensor seen;
  if (padded) {
    seen = at::rand({2, keys}).gt(0.3);
    seen[0].narrow(0, 0, keys / 3).fill_(false);  // some queries of causal attention see no key
  }
  if (!bias.empty()) {
    pair.inputs.push_back(at::randn(bias, at::kDouble));
    if (bias_wants) pair.wanting = 4;
  }
  pair.run = [options, seen](const Tensors& in, const Context& context) {
    AttentionMask mask{.keys = seen};
    if (in.size() > 3) mask.bias = in[3];
    return attention(in[0], in[1], in[2], options, mask, context);
  };
  return pair;
}

std::vector<Pair> pairs() {
  at::manual_seed(3);
  std::vector<Pair> all;
  const AttentionOptions drops{.scale = 0.25, .dropout = 0.3, .layer = 1, .site = 2, .first_head = 6};
  AttentionOptions causal = drops, window = drops, capped = drops, plain = drops;
  causal.causal = window.causal = true;
  window.window = 37;
  capped.soft_cap = 2;
  plain.dropout = 0;
  all.push_back(attention_pair("dropout", 3, 3, 17, 17, drops));
  all.push_back(attention_pair("dropout, several blocks", 2, 2, 150, 530, drops));
  all.push_back(attention_pair("causal", 2, 2, 300, 300, causal));
  all.push_back(attention_pair("causal, the last places", 2, 1, 5, 300, causal));
  all.push_back(attention_pair("window", 2, 2, 400, 400, window));
  all.push_back(attention_pair("grouped heads", 6, 2, 140, 140, causal));
  all.push_back(attention_pair("padding", 2, 2, 140, 300, drops, true));
  all.push_back(attention_pair("padding, causal", 4, 2, 300, 300, causal, true));
  all.push_back(attention_pair("padding, window", 2, 2, 300, 300, window, true));
  all.push_back(attention_pair("fewer keys", 2, 2, 30, 20, causal));
  all.push_back(attention_pair("soft cap", 2, 1, 150, 150, capped, true));
  AttentionOptions both = window;
  both.soft_cap = 3;
  both.dropout = 0;
  all.push_back(attention_pair("soft cap, window, no dropout", 4, 2, 300, 300, both));
  all.push_back(attention_pair("bias of heads", 3, 3, 140, 300, plain, false, {1, 3, 140, 300}));
  all.push_back(attention_pair("bias of samples", 3, 3, 40, 41, drops, true, {2, 3, 40, 41}));
  all.push_back(attention_pair("bias of all heads", 4, 2, 40, 40, capped, false, {1, 1, 40, 40}));
  all.push_back(attention_pair("bias of keys alone", 3, 3, 40, 60, plain, false, {1, 3, 1, 60}));
  for (int64_t features : {5, 64, 771}) {
    all.push_back({.name = "rms norm",
                   .inputs = {at::randn({2, 35, features}, at::kDouble), at::randn({features}, at::kDouble)},
                   .run = [](const Tensors& in, const Context& c) { return rms_norm(in[0], in[1], 1e-5, 0.5, c); },
                   .wanting = 2});
    all.push_back({.name = "gated unit, one product",
                   .inputs = {at::randn({2, 9, 2 * features}, at::kDouble) * 5},
                   .run = [features](const Tensors& in, const Context& c) {
                     return gated(find_activation("silu"), in[0].narrow(2, 0, features), in[0].narrow(2, features, features), c);
                   }});
  }
  all.push_back({.name = "a dropped branch",
                 .inputs = {at::randn({2, 9, 35}, at::kDouble), at::randn({2, 9, 35}, at::kDouble)},
                 .run = [](const Tensors& in, const Context& c) { return add_dropped(in[0], in[1], 0.4, 3, 1, 5, c); },
                 .wanting = 2});
  for (bool interleaved : {false, true})
    all.push_back({.name = "rotary positions",
                   .inputs = {at::randn({2, 9, 3, 30}, at::kDouble)},
                   .run = [interleaved](const Tensors& in, const Context& c) {
                     return Rotary({.size = 22, .interleaved = interleaved}).apply(in[0].transpose(1, 2), c);
                   }});
  all.push_back(attention_pair("slopes", 3, 3, 140, 140, causal, false, {1, 3, 1, 140}, false));
  return all;
}

TEST(Fuse, EveryPairAgrees) {
  Batch batch;
  batch.samples = at::tensor({3, 9}, at::kLong);
  batch.rows = 2;
  batch.position = 2;
  for (const Pair& pair : pairs()) {
    const Tensors exact = run(pair, at::kDouble, false, batch);
    for (const auto& [type, bound] : std::map<at::ScalarType, double>{
             {at::kDouble, 1e-12}, {at::kFloat, 3e-6}, {at::kBFloat16, 2e-2}, {at::kHalf, 4e-3}}) {
      const Tensors got = run(pair, type, true, batch);
      ASSERT_EQ(got.size(), exact.size());
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i].scalar_type(), type);
        EXPECT_LE(error(got[i], exact[i]), bound) << pair.name << ", " << c10::toString(type) << ", tensor " << i;
      }
    }
  }
}

// Whoever shares the work, the bits are the same; and a sample's do not depend on those beside it.
TEST(Fuse, BitsAreTheSameOnAnyNumberOfThreads) {
  Batch batch;
  batch.samples = at::tensor({3, 9}, at::kLong);
  batch.rows = 2;
  const int before = at::get_num_threads();
  for (const Pair& pair : pairs()) {
    at::set_num_threads(1);
    const Tensors one = run(pair, at::kFloat, true, batch);
    at::set_num_threads(3);
    const Tensors three = run(pair, at::kFloat, true, batch);
    for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::equal(one[i], three[i])) << pair.name;
  }
  at::set_num_threads(before);
}

TEST(Fuse, ANaNIsSeen) {
  Batch batch;
  batch.samples = at::tensor({3, 9}, at::kLong);
  batch.rows = 2;
  for (const Pair& pair : pairs()) {
    Pair broken = pair;
    broken.inputs[0] = broken.inputs[0].clone();
    broken.inputs[0].select(-1, 0).fill_(std::numeric_limits<double>::quiet_NaN());
    EXPECT_TRUE(run(broken, at::kFloat, true, batch)[0].isnan().any().item<bool>()) << pair.name;
  }
}

}  // namespace
}  // namespace trireme::nn
