// The optimizer on meshes: every gradient is handed out in pieces to the ranks that replicate its
// parameter, and norms, parameters and states must be those of one rank.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <mutex>

#include "trireme/base/error.h"
#include "trireme/base/philox.h"
#include "trireme/dist/world.h"
#include "trireme/optim/groups.h"
#include "trireme/optim/param_gather.h"
#include "trireme/optim/sharded_optimizer.h"

namespace trireme::optim {
namespace {

using layout::Coord;
using layout::Mesh;
using layout::Sbp;

// Split, replicated, invariant and tied parameters; fused and uneven splits.
std::vector<layout::ParamSpec> specs(int stages, base::DType dtype) {
  auto spec = [&](const char* name, layout::Shape shape, std::vector<int> on, Sbp tp,
                  std::vector<int64_t> fused = {}) {
    return layout::ParamSpec{.name = name,
                             .shape = std::move(shape),
                             .dtype = dtype,
                             .init = layout::Init::normal(0.5),
                             .layout = {.stages = std::move(on), .tp = tp},
                             .fused = std::move(fused)};
  };
  const int last = stages - 1;
  const std::vector<int> tie = last > 0 ? std::vector{0, last} : std::vector{0};
  return {spec("wte.weight", {13, 8}, tie, Sbp::split(0)),
          spec("shared.ln_t.weight", {9}, tie, Sbp::replicated()),
          spec("h.0.attn.weight", {8, 24}, {0}, Sbp::split(1), {8, 8, 8}),
          spec("h.0.attn.bias", {24}, {0}, Sbp::split(0), {8, 8, 8}),
          spec("h.0.ln_1.weight", {8}, {0}, Sbp::replicated()),
          spec("h.1.mlp.weight", {8, 70}, {last}, Sbp::split(0)),
          spec("h.1.mlp.bias", {8}, {last}, Sbp::invariant())};
}

double gradient(const std::string& name, int64_t index, int step) {
  // fp32 takes it without rounding.
  return static_cast<float>(base::normal(base::stream_key(7, name, step), index));
}

// Contributors k of n hold 1/2, 1/4, ..., and the last one what is left: a sum without rounding.
double share(int k, int n) {
  return std::ldexp(1.0, -(k + 1 < n ? k + 1 : std::max(n - 1, 0)));
}

struct Outcome {
  std::map<std::string, at::Tensor> params;  // global
  std::map<std::string, at::Tensor> states;
  std::vector<double> norms;
};

struct Options {
  base::DType dtype = base::DType::f64;
  int zero_stage = 0;
  int64_t bucket_bytes = 25 << 20;
  bool hooks = false;  // exchanges start as contributions land
  std::optional<base::DType> travel = {};
  config::Optim optim = {};
};

Outcome train(const Coord& sizes, const Options& options) {
  Outcome run;
  std::mutex mutex;
  const Mesh mesh_shape(sizes);
  dist::run_ranks(mesh_shape.size(), [&](dist::World& world) {
    dist::DeviceMesh mesh(world, mesh_shape);
    nn::ParamStore store;
    for (const layout::ParamSpec& spec : specs(sizes.pp, options.dtype))
      if (layout::holds(spec, mesh.coord.pp))
        store.declare(spec, layout::local_slice(spec, mesh_shape, mesh.coord));
    freeze(store, options.optim);
    store.materialize(11, true, {}, options.bucket_bytes,
                      nn::zero_sharding(options.zero_stage, sizes.dp, mesh.coord.dp));
    ParamGather gather(mesh, store);
    ShardedOptimizer optimizer(world, mesh, store, options.optim, options.zero_stage,
                               options.travel);
    for (int step = 0; step < 3; ++step) {
      store.begin_step(1);
      optimizer.sync().begin();
      optimizer.sync().before(0);
      for (nn::Param* param : store.params()) {
        if (param->frozen) continue;
        const auto& where = param->spec.layout;
        const int n = sizes.dp * (where.tp.is_replicated() ? sizes.tp : 1) *
                      static_cast<int>(where.stages.size());
        int k = mesh.coord.dp;
        if (where.tp.is_replicated()) k = k * sizes.tp + mesh.coord.tp;
        if (where.stages.size() > 1) k = k * 2 + (mesh.coord.pp == 0 ? 0 : 1);
        at::Tensor grad = param->grad.flatten();
        layout::for_each_run(param->slice, param->spec.shape, [&](layout::Run r) {
          for (int64_t i = 0; i < r.count; ++i)
            grad[r.local + i].fill_(gradient(param->spec.name, r.global + i, step) * share(k, n));
        });
        param->contributions = 1;
        param->grad_begun = true;
        if (options.hooks && options.zero_stage < 2) optimizer.sync().landed();
      }
      if (options.zero_stage >= 2) optimizer.sync().after(0);
      double norm = optimizer.step(0.01).grad_norm;
      std::lock_guard lock(mutex);
      if (run.norms.size() == static_cast<size_t>(step)) run.norms.push_back(norm);
      EXPECT_EQ(norm, run.norms[step]) << "differs between ranks";
    }
    EXPECT_EQ(optimizer.steps_taken(), 3);
    optimizer.sync().gather();
    gather.gather_all();
    std::lock_guard lock(mutex);
    auto place = [](std::map<std::string, at::Tensor>& into, const std::string& name,
                    const layout::Slice& slice, const layout::Shape& shape, layout::Range flat,
                    const at::Tensor& local) {
      at::Tensor& global = into[name];
      if (!global.defined())
        global = at::full({layout::element_count(shape)}, std::numeric_limits<double>::quiet_NaN(),
                          local.options());
      layout::for_each_run(slice, shape, [&](layout::Run r) {
        for (int64_t i = 0; i < r.count; ++i) {
          if (r.local + i < flat.begin || r.local + i >= flat.end) continue;
          at::Tensor value = local[r.local + i - flat.begin], cell = global[r.global + i];
          if (cell.isnan().item<bool>())
            cell.copy_(value);
          else
            EXPECT_TRUE(at::equal(cell, value)) << name << " differs between ranks";
        }
      });
    };
    for (nn::Param* param : store.params()) {
      place(run.params, param->spec.name, param->slice, param->spec.shape, {0, param->data.numel()},
            param->data.flatten());
      if (options.zero_stage == 0 && !param->frozen)
        place(run.states, param->spec.name + ".grad", param->slice, param->spec.shape,
              {0, param->data.numel()}, param->grad.flatten());
    }
    // Owned parts fill every state exactly once.
    for (const nn::TensorPart& part : optimizer.state()) {
      if (!part.owner) continue;
      at::Tensor& global = run.states[part.name];
      if (global.defined()) {
        layout::for_each_run(part.slice, part.global_shape, [&](layout::Run r) {
          for (int64_t i = 0; i < r.count; ++i) {
            if (r.local + i < part.flat.begin || r.local + i >= part.flat.end) continue;
            EXPECT_TRUE(global[r.global + i].isnan().item<bool>()) << part.name << " overlaps";
          }
        });
      }
      place(run.states, part.name, part.slice, part.global_shape, part.flat, part.data);
    }
  });
  for (const auto& [name, state] : run.states)
    EXPECT_FALSE(state.isnan().any().item<bool>()) << name << " has holes";
  return run;
}

void expect_close(const std::map<std::string, at::Tensor>& a,
                  const std::map<std::string, at::Tensor>& b, double bound) {
  for (const auto& [name, tensor] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    EXPECT_TRUE(at::allclose(tensor, b.at(name), bound, bound)) << name;
  }
}

const config::Optim kClipped{.eps = 1e-4, .weight_decay = 0.1, .clip_grad_max_norm = 3.0};

TEST(ShardedOptimizer, EveryMeshStepsAsOneRank) {
  for (double type : {1.0, 2.0, std::numeric_limits<double>::infinity()}) {
    config::Optim optim = kClipped;
    optim.clip_grad_norm_type = type;
    if (type == 1) optim.name = "sgd", optim.momentum = 0.9;
    const Outcome one = train({1, 1, 1}, {.optim = optim});
    for (const Coord& sizes :
         {Coord{1, 3, 1}, Coord{1, 1, 2}, Coord{2, 1, 1}, Coord{2, 2, 2}, Coord{3, 1, 2}}) {
      for (int zero : {0, 1, 2, 3}) {
        const Outcome many = train(sizes, {.zero_stage = zero, .optim = optim});
        for (size_t step = 0; step < 3; ++step)
          EXPECT_NEAR(many.norms[step], one.norms[step], 1e-12 * one.norms[step]);
        expect_close(many.params, one.params, 1e-13);
        expect_close(many.states, one.states, 1e-13);
      }
    }
  }
}

const Coord kMeshes[] = {{1, 3, 1}, {1, 1, 2}, {2, 1, 1}, {2, 2, 2}, {3, 1, 2}};

// Rules that look at whole tensors: wherever these are cut, whatever shares a bucket.
TEST(ShardedOptimizer, EveryRuleStepsAsOneRank) {
  for (const char* name : {"adam", "lion", "lamb", "adafactor", "muon"}) {
    config::Optim optim = kClipped;
    optim.name = name;
    const Outcome one = train({1, 1, 1}, {.optim = optim});
    for (const Coord& sizes : kMeshes) {
      for (const auto& [zero, bucket_bytes] :
           {std::pair(0, int64_t{25} << 20), {1, 100}, {1, 25 << 20}, {2, 100}, {3, 25 << 20}}) {
        SCOPED_TRACE(fmt::format("{} on {} x {} x {}, ZeRO {}, buckets of {}", name, sizes.pp,
                                 sizes.dp, sizes.tp, zero, bucket_bytes));
        const Outcome many =
            train(sizes, {.zero_stage = zero, .bucket_bytes = bucket_bytes, .optim = optim});
        expect_close(many.params, one.params, 1e-12);
        expect_close(many.states, one.states, 1e-12);
      }
    }
  }
}

TEST(ShardedOptimizer, EveryRuleGivesZeroStagesTheSameBits) {
  for (const char* name : {"lion", "lamb", "adafactor", "muon"}) {
    config::Optim optim = kClipped;
    optim.name = name;
    Options options{.dtype = base::DType::f32, .optim = optim};
    const Outcome whole = train({1, 3, 2}, options);
    options.zero_stage = 1;
    const Outcome sharded = train({1, 3, 2}, options);
    for (const auto& [parameter, tensor] : whole.params)
      EXPECT_TRUE(at::equal(tensor, sharded.params.at(parameter))) << name << " " << parameter;
  }
}

TEST(ShardedOptimizer, GroupsFreezeAndScale) {
  for (const char* name : {"adamw", "adafactor", "muon"}) {
    config::Optim optim = kClipped;
    optim.name = name;
    const Outcome plain = train({1, 1, 1}, {.optim = optim});
    optim.groups = {{.pattern = "wte.*", .freeze = true},
                    {.pattern = "h.0.*.bias", .freeze = true},
                    {.pattern = "h.1.mlp.*", .lr_scale = 0, .weight_decay = 0.5}};
    const Outcome one = train({1, 1, 1}, {.optim = optim});
    EXPECT_FALSE(one.states.contains("wte.weight.exp_avg"));
    EXPECT_LT(one.norms[0], plain.norms[0]) << "the frozen count for the norm";
    // Nothing moves them: their first values are those of a run without a rate.
    config::Optim still = optim;
    still.groups = {{.pattern = "*", .lr_scale = 0}};
    const Outcome first = train({1, 1, 1}, {.optim = still});
    for (const char* parameter : {"wte.weight", "h.0.attn.bias", "h.1.mlp.weight"})
      EXPECT_TRUE(at::equal(one.params.at(parameter), first.params.at(parameter))) << parameter;
    EXPECT_FALSE(at::equal(one.params.at("h.0.attn.weight"), first.params.at("h.0.attn.weight")));
    for (const Coord& sizes : kMeshes) {
      for (int zero : {0, 1, 2, 3}) {
        const Outcome many = train(sizes, {.zero_stage = zero, .hooks = true, .optim = optim});
        expect_close(many.params, one.params, 1e-12);
        expect_close(many.states, one.states, 1e-12);
        EXPECT_NEAR(many.norms[0], one.norms[0], 1e-12 * one.norms[0]);
      }
    }
  }
}

TEST(ShardedOptimizer, ClipsValuesBeforeTheNorm) {
  config::Optim optim = kClipped;
  optim.name = "sgd";
  optim.weight_decay = 0;
  optim.clip_grad_value = 0.25;
  optim.clip_grad_max_norm.reset();
  const Outcome free = train({1, 1, 1}, {.optim = optim});
  // Values bind: a step of at most lr * 0.25 in each of the three.
  optim.groups = {{.pattern = "*", .lr_scale = 0}};
  const Outcome first = train({1, 1, 1}, {.optim = optim});
  for (const auto& [name, tensor] : free.params)
    EXPECT_LE((tensor - first.params.at(name)).abs().max().item<double>(), 3 * 0.01 * 0.25 + 1e-12);
  optim.groups.clear();
  for (std::optional<double> norm : {std::optional<double>(), std::optional(0.5)}) {
    optim.clip_grad_max_norm = norm;
    const Outcome one = train({1, 1, 1}, {.optim = optim});
    EXPECT_EQ(one.norms[0], free.norms[0]) << "the norm is that of the gradients as they came";
    for (const Coord& sizes : kMeshes)
      for (int zero : {0, 1, 2, 3})
        expect_close(train(sizes, {.zero_stage = zero, .optim = optim}).params, one.params, 1e-12);
  }
}

TEST(ShardedOptimizer, ZeroStagesGiveTheSameBits) {
  for (int64_t bucket_bytes : {int64_t{100}, int64_t{25} << 20}) {
    for (bool hooks : {false, true}) {
      Options options{.dtype = base::DType::f32,
                      .bucket_bytes = bucket_bytes,
                      .hooks = hooks,
                      .optim = kClipped};
      // From 2 on sums run in the same order where data ranks alone replicate.
      for (const auto& [sizes, last] : {std::pair(Coord{2, 3, 1}, 1), {Coord{1, 3, 1}, 3}}) {
        options.zero_stage = 0;
        const Outcome whole = train(sizes, options);
        for (options.zero_stage = 1; options.zero_stage <= last; ++options.zero_stage) {
          const Outcome sharded = train(sizes, options);
          // The norm's sums end where shards do, and these lie elsewhere where buckets are those of layers.
          for (size_t i = 0; i < 3; ++i) EXPECT_EQ(whole.norms[i], sharded.norms[i]);
          for (const auto& [name, tensor] : whole.params)
            EXPECT_TRUE(at::equal(tensor, sharded.params.at(name))) << name;
          for (const auto& [name, tensor] : sharded.states)
            EXPECT_TRUE(at::equal(tensor, whole.states.at(name))) << name;
        }
      }
    }
  }
}

// One step's contributions: `value` of each parameter's name and local element.
void contribute(nn::ParamStore& store, GradSync& sync,
                const std::function<double(const std::string&, int64_t)>& value) {
  store.begin_step(1);
  sync.begin();
  sync.before(0);
  for (nn::Param* param : store.params()) {
    at::Tensor grad = param->grad.flatten();
    EXPECT_EQ(grad.scalar_type(), nn::wide_type(param->spec.dtype));
    for (int64_t i = 0; i < grad.numel(); ++i) grad[i].fill_(value(param->spec.name, i));
    param->contributions = 1;
    param->grad_begun = true;
  }
  sync.after(0);
}

TEST(ShardedOptimizer, AnInfinityOnOneRankKeepsAllRanksFromStepping) {
  const layout::Coord tensor{.pp = 1, .dp = 2, .tp = 2}, stages{.pp = 2, .dp = 2, .tp = 1};
  for (base::DType dtype : {base::DType::f32, base::DType::f16}) {
    for (const auto& [sizes, zero] : {std::pair(tensor, 0), {tensor, 1}, {tensor, 3}, {stages, 0}, {stages, 1}, {stages, 2}}) {
      for (int bad = 0; bad < 4; ++bad) {
        // The second is an own copy of each tensor rank, which the first one counts.
        for (const std::string name : {"h.1.mlp.weight", "h.1.mlp.bias"}) {
          const Mesh shape(sizes);
          if (shape.coord(bad).pp != sizes.pp - 1) continue;  // the last stage has them
          dist::run_ranks(4, [&, zero = zero](dist::World& world) {
            dist::DeviceMesh mesh(world, shape);
            nn::ParamStore store;
            for (const layout::ParamSpec& spec : specs(shape.size(layout::Axis::pp), dtype))
              if (layout::holds(spec, mesh.coord.pp)) store.declare(spec, layout::local_slice(spec, shape, mesh.coord));
            store.materialize(11, true, {}, 25 << 20, nn::zero_sharding(zero, 2, mesh.coord.dp));
            ShardedOptimizer optimizer(world, mesh, store, kClipped, zero);
            const std::vector<nn::TensorPart> parts = nn::parts_of(store, mesh.coord);
            std::vector<at::Tensor> before;
            for (const nn::TensorPart& part : parts) before.push_back(part.data.clone());
            contribute(store, optimizer.sync(), [&](const std::string& of, int64_t i) {
              const bool here = world.rank() == bad && of == name && i == 3;
              return here ? std::numeric_limits<double>::infinity() : 1.0;
            });
            const StepReport report = optimizer.step(0.01, {.loss_scale = 1024});
            EXPECT_FALSE(report.finite);
            EXPECT_TRUE(std::isnan(report.grad_norm));
            EXPECT_EQ(optimizer.steps_taken(), 0);
            EXPECT_EQ(optimizer.first_not_finite(), name);
            for (size_t i = 0; i < parts.size(); ++i)
              EXPECT_TRUE(parts[i].data.equal(before[i])) << parts[i].name;
            for (const nn::TensorPart& part : optimizer.state())
              EXPECT_EQ(part.data.count_nonzero().item<int64_t>(), 0) << part.name;
          });
        }
      }
    }
  }
}

// Gradients of the scaled loss give the step of the loss's own, bit for bit.
TEST(ShardedOptimizer, APowerOfTwoAsLossScaleChangesNoBit) {
  for (const char* name : {"adamw", "sgd", "lion", "lamb", "adafactor", "muon"}) {
    std::vector<at::Tensor> results[2];
    for (int scaled : {0, 1}) {
      dist::run_ranks(1, [&](dist::World& world) {
        dist::DeviceMesh mesh(world, Mesh({.pp = 1, .dp = 1, .tp = 1}));
        nn::ParamStore store;
        for (const layout::ParamSpec& spec : specs(1, base::DType::f32))
          store.declare(spec, layout::local_slice(spec, mesh.mesh, mesh.coord));
        store.materialize(11, true);
        config::Optim options = kClipped;
        options.name = name;
        options.clip_grad_value = 0.5;
        ShardedOptimizer optimizer(world, mesh, store, options, 0);
        const double scale = scaled ? 65536 : 1;
        for (int step = 0; step < 3; ++step) {
          contribute(store, optimizer.sync(), [&](const std::string& of, int64_t i) {
            return gradient(of, i, step) * scale;
          });
          results[scaled].push_back(
              at::tensor(optimizer.step(0.01, {.loss_scale = scale}).grad_norm, at::kDouble));
        }
        for (nn::Param* param : store.params()) results[scaled].push_back(param->data.clone());
      });
    }
    for (size_t i = 0; i < results[0].size(); ++i)
      EXPECT_TRUE(results[0][i].equal(results[1][i])) << name << " " << i;
  }
}

// 16-bit parameters: the masters take fp32's steps, the parameters are the masters rounded.
TEST(ShardedOptimizer, MastersStepInFp32) {
  for (int zero : {0, 1, 3}) {
    dist::run_ranks(2, [&](dist::World& world) {
      dist::DeviceMesh mesh(world, Mesh({.pp = 1, .dp = 2, .tp = 1}));
      std::map<std::string, at::Tensor> wide, narrow;
      for (base::DType dtype : {base::DType::f32, base::DType::bf16}) {
        nn::ParamStore store;
        for (const layout::ParamSpec& spec : specs(1, dtype))
          store.declare(spec, layout::local_slice(spec, mesh.mesh, mesh.coord));
        store.materialize(11, true, {}, 25 << 20, nn::zero_sharding(zero, 2, mesh.coord.dp));
        ParamGather gather(mesh, store);
        config::Optim options = kClipped;
        options.ema.decay = 0.75;
        ShardedOptimizer optimizer(world, mesh, store, options, zero);
        EXPECT_EQ(optimizer.masters().empty(), dtype == base::DType::f32);
        for (nn::TensorPart& part : optimizer.masters()) {
          at::Tensor whole = at::empty({store.find(part.name)->slice.count()});
          nn::initialize(*store.find(part.name), 11, whole);
          part.data.copy_(whole.narrow(0, part.flat.begin, part.flat.size()));
        }
        optimizer.start_averages();
        for (int step = 0; step < 2; ++step) {
          contribute(store, optimizer.sync(), [&](const std::string& of, int64_t i) {
            return gradient(of, i, step) / 2;
          });
          optimizer.step(0.01);
        }
        gather.gather_all();
        for (nn::Param* param : store.params())
          (dtype == base::DType::f32 ? wide : narrow)[param->spec.name] = param->data.clone();
        for (const nn::TensorPart& part : optimizer.state())
          if (dtype == base::DType::f32)
            wide[part.name] = part.data.clone();
          else
            EXPECT_TRUE(part.data.equal(wide.at(part.name))) << part.name;
        for (const nn::TensorPart& part : optimizer.masters()) {
          const at::Tensor want =
              wide.at(part.name).flatten().narrow(0, part.flat.begin, part.flat.size());
          EXPECT_TRUE(part.data.equal(want)) << part.name;
        }
      }
      for (const auto& [name, tensor] : narrow)
        EXPECT_TRUE(tensor.equal(wide.at(name).to(at::kBFloat16))) << name;
      EXPECT_TRUE(wide.contains("h.0.attn.weight.ema") || zero > 0);
    });
  }
}

// Rounded twice, to 8 bits; the ZeRO stages round alike.
TEST(ShardedOptimizer, GradientsMayTravelInBf16) {
  Options options{.dtype = base::DType::f32, .optim = {.name = "sgd", .clip_grad_max_norm = {}}};
  const Outcome exact = train({1, 2, 2}, options);
  options.travel = base::DType::bf16;
  const Outcome rounded = train({1, 2, 2}, options);
  EXPECT_NE(rounded.norms[0], exact.norms[0]);
  EXPECT_NEAR(rounded.norms[0] / exact.norms[0], 1, 1.0 / 128);
  for (const auto& [name, tensor] : exact.params)
    EXPECT_LT((rounded.params.at(name) - tensor).abs().max().item<double>(), 3 * 0.01 * 4 / 128) << name;
  for (int zero : {1, 2, 3}) {
    options.zero_stage = zero;
    const Outcome sharded = train({1, 2, 1}, options);
    options.zero_stage = 0;
    const Outcome whole = train({1, 2, 1}, options);
    EXPECT_EQ(sharded.norms, whole.norms) << zero;
    for (const auto& [name, tensor] : whole.params)
      EXPECT_TRUE(tensor.equal(sharded.params.at(name))) << name << " " << zero;
  }
}

TEST(ShardedOptimizer, RefusesZeroStagesThatAreNotThere) {
  EXPECT_THROW(train({1, 1, 1}, {.zero_stage = 4}), base::ConfigError);
}

}  // namespace
}  // namespace trireme::optim
