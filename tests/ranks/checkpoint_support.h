#pragma once
// A toy model whose tensors have known values on any layout, and what the tests of checkpoints do
// with it.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/hash.h"
#include "trireme/base/philox.h"
#include "trireme/checkpoint/load.h"
#include "trireme/checkpoint/save.h"
#include "trireme/dist/world.h"

namespace trireme::checkpoint {

/// Four blocks between an embedding and a head that is tied to it; odd sizes, fused weights, every
/// placement.
inline layout::ModelDescription toy_model() {
  layout::ModelDescription model;
  auto add = [&](const std::string& name, layout::Shape shape, layout::Sbp tp,
                 std::vector<int64_t> fused = {}, int64_t granularity = 1) {
    layout::ParamSpec spec{.name = name,
                           .shape = std::move(shape),
                           .fused = std::move(fused),
                           .granularity = granularity};
    spec.layout.tp = tp;
    model.parameters.push_back(spec);
    return name;
  };
  std::string table = add("transformer.wte.weight", {13, 6}, layout::Sbp::split(0));
  std::string scalar = add("transformer.scale", {}, layout::Sbp::invariant());
  model.layers.push_back({.name = "embeddings", .parameters = {table, scalar}});
  for (int i = 0; i < 4; ++i) {
    std::string h = fmt::format("transformer.h.{}.", i);
    model.layers.push_back(
        {.name = h,
         .block = true,
         .parameters = {add(h + "attn.c_attn.weight", {6, 18}, layout::Sbp::split(1), {6, 6, 6}, 2),
                        add(h + "attn.c_attn.bias", {18}, layout::Sbp::split(0), {6, 6, 6}, 2),
                        add(h + "attn.c_proj.weight", {6, 6}, layout::Sbp::split(0), {}, 2),
                        add(h + "mlp.c_fc.weight", {6, 7}, layout::Sbp::split(-1)),
                        add(h + "ln_1.weight", {6}, layout::Sbp::replicated())}});
  }
  model.layers.push_back(
      {.name = "head",
       .parameters = {table, add("transformer.ln_f.weight", {6}, layout::Sbp::invariant())}});
  model.layers_per_stage = {4};
  return model;
}

/// Element `index` of a named tensor, the same on every layout.
inline double value(const std::string& name, int64_t index) {
  return base::normal(base::hash_text(name), static_cast<uint64_t>(index));
}

/// A part of `name` with its values (or zeros, to be loaded into).
inline nn::TensorPart make_part(const std::string& name, const layout::Shape& shape,
                     const layout::Slice& slice, layout::Range flat, bool owner,
                     at::ScalarType type, bool fill) {
  at::Tensor all = at::zeros({slice.count()}, at::kDouble);
  if (fill) {
    layout::for_each_run(slice, shape, [&](layout::Run run) {
      for (int64_t i = 0; i < run.count; ++i)
        all.data_ptr<double>()[run.local + i] = value(name, run.global + i);
    });
  }
  return {name, shape, slice, flat, all.slice(0, flat.begin, flat.end).to(type).contiguous(),
          owner};
}

struct RankState {
  std::vector<nn::TensorPart> parameters, optimizer;
};

/// What one rank holds; `zero`: the optimizer's tensors are split over dp as flat ranges.
inline RankState state_of(const layout::ModelDescription& model, const layout::Mesh& mesh, int rank, bool zero,
                   bool fill, at::ScalarType type = at::kFloat) {
  layout::Coord coord = mesh.coord(rank);
  RankState state;
  for (const layout::ParamSpec& spec : model.parameters) {
    if (!layout::holds(spec, coord.pp)) continue;
    layout::Slice slice = layout::local_slice(spec, mesh, coord);
    layout::Range all{0, slice.count()};
    state.parameters.push_back(
        make_part(spec.name, spec.shape, slice, all, layout::is_owner(spec, coord), type, fill));
    layout::Range shard =
        zero ? layout::split_range(slice.count(), mesh.size(layout::Axis::dp), coord.dp) : all;
    bool owner =
        layout::is_owner(spec, {.pp = coord.pp, .dp = zero ? 0 : coord.dp, .tp = coord.tp});
    for (const char* kind : {".exp_avg", ".exp_avg_sq"}) {
      state.optimizer.push_back(
          make_part(spec.name + kind, spec.shape, slice, shard, owner, at::kFloat, fill));
    }
  }
  return state;
}

inline Manifest manifest_of(const layout::ModelDescription& model, const layout::Mesh& mesh, int64_t step,
                     bool merged) {
  Manifest manifest;
  manifest.step = step;
  manifest.consumed_samples = 8 * step;
  manifest.seed = 0xffffffffffffffffu;
  manifest.mesh = mesh;
  manifest.config = "train:\n  seed: 3\n";
  manifest.model_config = {{"model_type", "gpt2"}, {"vocab_size", 13}};
  manifest.optimizer = {{"steps", step}, {"scale", 0.1}};
  manifest.description = model;
  manifest.merged = merged;
  return manifest;
}

class CheckpointTest : public testing::Test {
 protected:
  std::string save_on(const layout::Mesh& mesh, bool zero, bool merged = false, int64_t step = 1,
                      int keep = 0, const std::string& folder = "") {
    layout::ModelDescription model = retarget(toy_model(), mesh);
    std::string path;
    dist::run_ranks(mesh.size(), [&](dist::World& world) {
      dist::DeviceMesh device(world, mesh);
      RankState state = state_of(model, mesh, world.rank(), zero, true);
      SaveRequest request{root_ + folder,   manifest_of(model, mesh, step, merged),
                          state.parameters, state.optimizer,
                          tokenizer_,       keep};
      std::string saved = save(request, device.world);
      if (world.rank() == 0) path = saved;
    });
    return path;
  }

  /// Loads on every rank of `mesh` and compares each element.
  void expect_loads_on(const std::string& path, const layout::Mesh& mesh, bool zero,
                       bool optimizer = true) {
    layout::ModelDescription model = retarget(toy_model(), mesh);
    for (int rank = 0; rank < mesh.size(); ++rank) {
      Checkpoint checkpoint(path);
      RankState want = state_of(model, mesh, rank, zero, true),
                got = state_of(model, mesh, rank, zero, false);
      load_parameters(checkpoint, got.parameters, model.parameters);
      if (optimizer) load_optimizer(checkpoint, got.optimizer);
      for (size_t i = 0; i < want.parameters.size(); ++i) {
        EXPECT_TRUE(at::equal(want.parameters[i].data, got.parameters[i].data))
            << want.parameters[i].name;
      }
      for (size_t i = 0; optimizer && i < want.optimizer.size(); ++i) {
        EXPECT_TRUE(at::equal(want.optimizer[i].data, got.optimizer[i].data))
            << want.optimizer[i].name;
      }
    }
  }

  /// The FormatError that opening and reading everything raises.
  std::string refusal(const std::string& path) {
    try {
      expect_loads_on(path, layout::Mesh(), false);
      Checkpoint(path).verify();
    } catch (const base::FormatError& e) {
      return e.what();
    }
    return "accepted";
  }

  std::vector<std::string> listing(const std::string& folder) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }

  void edit(const std::string& path, const std::function<void(std::string&)>& change) {
    std::string content = base::read_file(path);
    change(content);
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
  }

  test::TemporaryFolder temporary_;
  const std::string root_ = temporary_.path();
  std::string tokenizer_;
};

inline const std::vector<layout::Coord> kMeshes = {{1, 1, 1}, {1, 2, 1}, {1, 1, 2}, {2, 1, 1},
                                            {2, 2, 2}, {1, 1, 3}, {4, 1, 2}, {1, 3, 2}};

}  // namespace trireme::checkpoint
