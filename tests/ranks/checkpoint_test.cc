#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/hash.h"
#include "trireme/base/philox.h"
#include "trireme/checkpoint/convert.h"
#include "trireme/checkpoint/folder.h"
#include "trireme/checkpoint/load.h"
#include "trireme/checkpoint/save.h"
#include "trireme/dist/redistribute.h"
#include "trireme/dist/world.h"
#include "trireme/formats/safetensors.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
using base::DType;
using layout::Mesh;
using layout::Sbp;
using nn::TensorPart;
using testing::HasSubstr;

/// Four blocks between an embedding and a head that is tied to it; odd sizes, fused weights, every
/// placement.
layout::ModelDescription toy_model() {
  layout::ModelDescription model;
  auto add = [&](const std::string& name, layout::Shape shape, Sbp tp,
                 std::vector<int64_t> fused = {}, int64_t granularity = 1) {
    layout::ParamSpec spec{.name = name,
                           .shape = std::move(shape),
                           .fused = std::move(fused),
                           .granularity = granularity};
    spec.layout.tp = tp;
    model.parameters.push_back(spec);
    return name;
  };
  std::string table = add("transformer.wte.weight", {13, 6}, Sbp::split(0));
  std::string scalar = add("transformer.scale", {}, Sbp::invariant());
  model.layers.push_back({.name = "embeddings", .parameters = {table, scalar}});
  for (int i = 0; i < 4; ++i) {
    std::string h = fmt::format("transformer.h.{}.", i);
    model.layers.push_back(
        {.name = h,
         .block = true,
         .parameters = {add(h + "attn.c_attn.weight", {6, 18}, Sbp::split(1), {6, 6, 6}, 2),
                        add(h + "attn.c_attn.bias", {18}, Sbp::split(0), {6, 6, 6}, 2),
                        add(h + "attn.c_proj.weight", {6, 6}, Sbp::split(0), {}, 2),
                        add(h + "mlp.c_fc.weight", {6, 7}, Sbp::split(-1)),
                        add(h + "ln_1.weight", {6}, Sbp::replicated())}});
  }
  model.layers.push_back(
      {.name = "head",
       .parameters = {table, add("transformer.ln_f.weight", {6}, Sbp::invariant())}});
  model.layers_per_stage = {4};
  return model;
}

/// Element `index` of a named tensor, the same on every layout.
double value(const std::string& name, int64_t index) {
  return base::normal(base::hash_text(name), static_cast<uint64_t>(index));
}

/// A part of `name` with its values (or zeros, to be loaded into).
TensorPart make_part(const std::string& name, const layout::Shape& shape,
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
  std::vector<TensorPart> parameters, optimizer;
};

/// What one rank holds; `zero`: the optimizer's tensors are split over dp as flat ranges.
RankState state_of(const layout::ModelDescription& model, const Mesh& mesh, int rank, bool zero,
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

Manifest manifest_of(const layout::ModelDescription& model, const Mesh& mesh, int64_t step,
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
  std::string save_on(const Mesh& mesh, bool zero, bool merged = false, int64_t step = 1,
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
  void expect_loads_on(const std::string& path, const Mesh& mesh, bool zero,
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
      expect_loads_on(path, Mesh(), false);
      Checkpoint(path).verify();
    } catch (const base::FormatError& e) {
      return e.what();
    }
    return "accepted";
  }

  std::vector<std::string> listing(const std::string& folder) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder))
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

const std::vector<layout::Coord> kMeshes = {{1, 1, 1}, {1, 2, 1}, {1, 1, 2}, {2, 1, 1},
                                            {2, 2, 2}, {1, 1, 3}, {4, 1, 2}, {1, 3, 2}};

TEST_F(CheckpointTest, AnyLayoutLoadsWhatAnyOtherSaved) {
  for (size_t i = 0; i < kMeshes.size(); ++i) {
    for (bool merged : {false, true}) {
      bool zero = i % 2 == 1 || kMeshes[i].dp == 2;
      std::string path = save_on(Mesh(kMeshes[i]), zero, merged, 1, 0,
                                 fmt::format("/{}{}", i, merged ? "m" : "s"));
      for (size_t j = 0; j < kMeshes.size(); ++j)
        expect_loads_on(path, Mesh(kMeshes[j]), (i + j) % 2 == 0);
      Checkpoint checkpoint(path);
      EXPECT_EQ(checkpoint.manifest()->step, 1);
      EXPECT_EQ(checkpoint.manifest()->seed, 0xffffffffffffffffu);
      EXPECT_EQ(checkpoint.manifest()->optimizer, (base::Json{{"steps", 1}, {"scale", 0.1}}));
      EXPECT_EQ(checkpoint.manifest()->config, "train:\n  seed: 3\n");
      EXPECT_EQ(checkpoint.manifest()->mesh, Mesh(kMeshes[i]));
      EXPECT_EQ(checkpoint.manifest()->description.parameters.size(),
                toy_model().parameters.size());
    }
  }
}

TEST_F(CheckpointTest, EachByteIsWrittenOnce) {
  std::string path = save_on(Mesh({2, 2, 2}), true);
  int64_t elements = 0, stored = 0;
  for (const layout::ParamSpec& spec : toy_model().parameters)
    elements += layout::element_count(spec.shape);
  for (const std::string& name : listing(path)) {
    if (!name.ends_with(".safetensors")) continue;
    formats::SafetensorsFile file(path + "/" + name);
    for (const auto& [tensor, data] : file.tensors())
      stored += static_cast<int64_t>(data.bytes.size()) / 4;
  }
  EXPECT_EQ(stored, 3 * elements);  // the parameter and two of the optimizer's
  // Replicas hold no parameters of their own, only their shards of the optimizer's tensors.
  EXPECT_FALSE(fs::exists(path + "/model_rank_00002.safetensors"));
  EXPECT_TRUE(fs::exists(path + "/optimizer_rank_00002.safetensors"));
  EXPECT_EQ(Checkpoint(path).verify().tensors,
            Checkpoint(root_).verify().tensors);  // through `latest`
}

TEST_F(CheckpointTest, LoadingConvertsFloatingTypes) {
  std::string path = save_on(Mesh({1, 1, 2}), false);
  Checkpoint checkpoint(path);
  RankState want = state_of(toy_model(), Mesh(), 0, false, true, at::kBFloat16);
  RankState got = state_of(toy_model(), Mesh(), 0, false, false, at::kBFloat16);
  load_parameters(checkpoint, got.parameters, toy_model().parameters);
  for (size_t i = 0; i < want.parameters.size(); ++i) {
    at::Tensor exact =
        state_of(toy_model(), Mesh(), 0, false, true).parameters[i].data.to(at::kBFloat16);
    EXPECT_TRUE(at::equal(exact, got.parameters[i].data));
  }
  TensorPart integers = got.parameters[0];
  integers.data = at::zeros(integers.data.sizes(), at::kLong);
  EXPECT_THROW(checkpoint.read(integers), base::FormatError);
}

TEST_F(CheckpointTest, RefusesDamage) {
  std::string good = save_on(Mesh({2, 1, 2}), false), bad = root_ + "/bad";
  auto damaged = [&](const std::function<void()>& damage) {
    fs::remove_all(bad);
    fs::copy(good, bad);
    damage();
    return refusal(bad);
  };
  EXPECT_EQ(damaged([] {}), "accepted");
  EXPECT_THAT(damaged([&] { fs::remove(bad + "/trireme.json"); }), HasSubstr("incomplete"));
  EXPECT_THAT(
      damaged([&] { edit(bad + "/trireme.json", [](std::string& s) { s.resize(s.size() / 2); }); }),
      testing::AllOf(HasSubstr("trireme.json:"), HasSubstr("not valid JSON")));
  EXPECT_THAT(damaged([&] {
                edit(bad + "/trireme.json",
                     [](std::string& s) { s.replace(s.find("\"step\": 1"), 9, "\"step\": 2"); });
              }),
              HasSubstr("does not match its checksum"));
  EXPECT_THAT(damaged([&] {
                edit(bad + "/trireme.json", [](std::string& s) { s = "{\"format\":\"x\"}"; });
              }),
              HasSubstr("not the manifest"));
  EXPECT_THAT(damaged([&] {
                edit(bad + "/trireme.json", [](std::string& s) {
                  s.replace(s.find("\"version\": 1"), 12, "\"version\": 9");
                });
              }),
              HasSubstr("version 9"));
  EXPECT_THAT(damaged([&] {
                edit(bad + "/index.json",
                     [](std::string& s) { s.replace(s.find("[0,"), 3, "[1,"); });
              }),
              HasSubstr("index.json: its content does not match"));
  EXPECT_THAT(damaged([&] { fs::remove(bad + "/model_rank_00001.safetensors"); }),
              HasSubstr("model_rank_00001.safetensors: the file is missing"));
  EXPECT_THAT(damaged([&] {
                edit(bad + "/model_rank_00001.safetensors", [](std::string& s) { s.pop_back(); });
              }),
              HasSubstr("model_rank_00001.safetensors: tensor"));
  EXPECT_THAT(damaged([&] {
                edit(bad + "/model_rank_00001.safetensors", [](std::string& s) { s.back() ^= 1; });
              }),
              testing::AllOf(HasSubstr("model_rank_00001.safetensors: tensor \"transformer"),
                             HasSubstr("checksum")));
  EXPECT_THAT(damaged([&] {
                fs::copy_file(bad + "/model_rank_00000.safetensors",
                              bad + "/model_rank_00001.safetensors",
                              fs::copy_options::overwrite_existing);
              }),
              HasSubstr("model_rank_00001.safetensors: tensor"));
  EXPECT_THAT(damaged([&] { edit(bad + "/config.json", [](std::string& s) { s += " "; }); }),
              HasSubstr("config.json: its content does not match"));
  EXPECT_THAT(damaged([&] { fs::remove(bad + "/config.json"); }),
              HasSubstr("config.json: the file is missing"));
  EXPECT_THAT(damaged([&] { fs::remove(bad + "/optimizer_rank_00001.safetensors"); }),
              HasSubstr("optimizer_rank_00001.safetensors: the file is missing"));
  EXPECT_THROW(Checkpoint(root_ + "/none"), base::ConfigError);
  fs::create_directories(root_ + "/empty");
  EXPECT_THROW(Checkpoint(root_ + "/empty"), base::ConfigError);
}

TEST_F(CheckpointTest, ServesWithoutItsOptimizerFiles) {
  for (bool merged : {false, true}) {
    std::string path = save_on(Mesh({2, 1, 2}), false, merged);
    EXPECT_FALSE(Checkpoint(path).verify().weights_only);
    for (const std::string& name : listing(path))
      if (name.starts_with("optimizer")) fs::remove(path + "/" + name);
    Checkpoint checkpoint(path);
    EXPECT_FALSE(checkpoint.has_optimizer());
    EXPECT_TRUE(checkpoint.verify().weights_only);
    expect_loads_on(path, Mesh({1, 1, 2}), false, false);
  }
}

TEST_F(CheckpointTest, RefusesAnotherModelOrOptimizer) {
  Checkpoint checkpoint(save_on(Mesh({1, 1, 2}), false));
  layout::ModelDescription model = toy_model();
  auto say = [&](const std::vector<layout::ParamSpec>& specs) -> std::string {
    try {
      load_parameters(checkpoint, {}, specs);
    } catch (const base::FormatError& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_EQ(say(model.parameters), "accepted");
  auto specs = model.parameters;
  specs[0].shape = {14, 6};
  EXPECT_THAT(say(specs), HasSubstr("transformer.wte.weight is [13, 6], expected [14, 6]"));
  specs[0].name = "other";
  EXPECT_THAT(say(specs), testing::AllOf(HasSubstr("missing: other"),
                                         HasSubstr("not of the model: transformer.wte.weight")));
  RankState state = state_of(model, Mesh(), 0, false, false);
  for (TensorPart& part : state.optimizer) part.name += "x";
  EXPECT_THROW(load_optimizer(checkpoint, state.optimizer), base::FormatError);
  std::vector<TensorPart> half;
  for (const TensorPart& part : state_of(model, Mesh(), 0, false, false).optimizer) {
    if (part.name.ends_with("exp_avg")) half.push_back(part);
  }
  EXPECT_THROW(load_optimizer(checkpoint, half), base::FormatError);
}

TEST_F(CheckpointTest, AFailingRankFailsAllAndLeavesTheLastCheckpoint) {
  Mesh mesh({1, 2, 2});
  for (bool merged : {false, true}) {
    std::string folder = merged ? "/m" : "/s";
    save_on(mesh, true, merged, 1, 0, folder);
    layout::ModelDescription model = retarget(toy_model(), mesh);
    std::atomic<int> failed = 0;
    dist::run_ranks(4, [&](dist::World& world) {
      dist::DeviceMesh device(world, mesh);
      RankState state = state_of(model, mesh, world.rank(), true, true);
      SaveRequest request{root_ + folder,
                          manifest_of(model, mesh, 2, merged),
                          state.parameters,
                          state.optimizer,
                          "",
                          0};
      if (world.rank() == 3) request.optimizer[0].data = at::zeros({1});
      try {
        save(request, device.world);
      } catch (const base::InternalError& e) {
        EXPECT_THAT(e.what(), HasSubstr("rank 3: "));
        ++failed;
      }
      device.world.barrier();
      if (world.rank() == 0) {
        EXPECT_THAT(listing(root_ + folder), testing::ElementsAre("latest", "step_00000001"));
      }
      device.world.barrier();
      request.optimizer = state.optimizer;  // the run goes on
      save(request, device.world);
    });
    EXPECT_EQ(failed, 4);
    EXPECT_EQ(find_latest(root_ + folder), root_ + folder + "/step_00000002");
    expect_loads_on(root_ + folder, Mesh(), false);
  }
}

TEST_F(CheckpointTest, ADiskThatFillsUpIsAnIoErrorOnAllRanks) {
  // A limit on the size of files stands for a full disk.
  signal(SIGXFSZ, SIG_IGN);
  for (bool merged : {false, true}) {
    std::string folder = merged ? "/m" : "/s";
    save_on(Mesh({1, 2, 1}), true, merged, 1, 0, folder);
    rlimit before{};
    getrlimit(RLIMIT_FSIZE, &before);
    rlimit small = before;
    small.rlim_cur = 500;
    std::atomic<int> failed = 0;
    dist::run_ranks(2, [&](dist::World& world) {
      Mesh mesh({1, 2, 1});
      dist::DeviceMesh device(world, mesh);
      device.world.barrier();
      setrlimit(RLIMIT_FSIZE, &small);
      RankState state = state_of(toy_model(), mesh, world.rank(), true, true);
      SaveRequest request{root_ + folder,
                          manifest_of(toy_model(), mesh, 2, merged),
                          state.parameters,
                          state.optimizer,
                          "",
                          0};
      try {
        save(request, device.world);
      } catch (const base::IoError& e) {
        EXPECT_THAT(e.what(), HasSubstr(".safetensors"));
        ++failed;
      }
    });
    setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_EQ(failed, 2);
    EXPECT_THAT(listing(root_ + folder), testing::ElementsAre("latest", "step_00000001"));
    expect_loads_on(root_ + folder, Mesh(), false);
  }
}

TEST_F(CheckpointTest, KeepsTheNewestAndTheLatest) {
  fs::create_directories(root_ + "/.step_00000009.tmp");
  std::ofstream(root_ + "/.step_00000009.tmp/part") << "left by a killed run";
  for (int step : {1, 2, 3, 4}) save_on(Mesh(), false, false, step, 2);
  EXPECT_THAT(listing(root_), testing::ElementsAre("latest", "step_00000003", "step_00000004"));
  set_latest(root_, "step_00000003");
  prune(root_, 1);
  EXPECT_THAT(listing(root_), testing::ElementsAre("latest", "step_00000003", "step_00000004"));
  save_on(Mesh(), false, false, 4, 2);  // a repeated step replaces its checkpoint
  EXPECT_EQ(find_latest(root_), root_ + "/step_00000004");
  expect_loads_on(root_, Mesh(), false);
  fs::remove(root_ + "/latest");
  EXPECT_EQ(find_latest(root_), root_ + "/step_00000004");
  set_latest(root_, "step_00000007");
  EXPECT_THROW(find_latest(root_), base::FormatError);
  EXPECT_EQ(find_latest(root_ + "/none"), std::nullopt);
}

TEST_F(CheckpointTest, ConvertsThereAndBack) {
  fs::create_directories(root_ + "/tokenizer");
  std::ofstream(root_ + "/tokenizer/tokenizer.json") << "{}";
  tokenizer_ = root_ + "/tokenizer";
  std::string split = save_on(Mesh({2, 2, 2}), true), hf = root_ + "/hf",
              merged = root_ + "/merged";
  ConvertOptions options;
  convert_to_hf(Checkpoint(split), hf, options);
  EXPECT_THAT(listing(hf),
              testing::ElementsAre("config.json", "model.safetensors", "tokenizer.json"));
  EXPECT_EQ(base::read_json(hf + "/config.json")["dtype"], "float32");
  expect_loads_on(hf, Mesh({2, 1, 2}), false, false);
  EXPECT_TRUE(difference(Checkpoint(split), Checkpoint(hf)).empty());
  EXPECT_THROW(convert_to_hf(Checkpoint(split), hf, options), base::ConfigError);  // exists

  options.optimizer = true;
  convert_to_hf(Checkpoint(split), merged, options);
  for (const layout::Coord& sizes : kMeshes) {
    std::string again = root_ + "/again";
    fs::remove_all(again);
    convert_to_split(Checkpoint(merged), again, toy_model(), Mesh(sizes), options);
    expect_loads_on(again, Mesh({1, 2, 1}), true);
    EXPECT_TRUE(difference(Checkpoint(split), Checkpoint(again)).empty());
    EXPECT_EQ(Checkpoint(again).manifest()->step, 1);
    EXPECT_TRUE(fs::exists(again + "/tokenizer.json"));
  }
  // A mesh that the model does not fit leaves nothing.
  EXPECT_THROW(
      convert_to_split(Checkpoint(merged), root_ + "/no", toy_model(), Mesh({1, 1, 4}), options),
      base::ConfigError);
  EXPECT_THROW(
      convert_to_split(Checkpoint(merged), root_ + "/no", toy_model(), Mesh({5, 1, 1}), options),
      base::ConfigError);
  EXPECT_FALSE(fs::exists(root_ + "/no"));
  EXPECT_FALSE(fs::exists(root_ + "/.no.tmp"));

  options.dtype = DType::bf16;
  convert_to_hf(Checkpoint(split), root_ + "/bf16", options);
  auto apart = difference(Checkpoint(split), Checkpoint(root_ + "/bf16"));
  EXPECT_EQ(apart.size(), toy_model().parameters.size());
  for (const TensorDifference& d : apart) {
    EXPECT_GT(d.max_abs, 0);
    EXPECT_LT(d.max_rel, 0x1p-8);
  }
}

TEST_F(CheckpointTest, ReadsHuggingFacesGpt2Names) {
  auto write = [&](const std::vector<std::pair<std::string, float>>& tensors, const char* config) {
    std::vector<formats::TensorEntry> entries;
    for (const auto& [name, number] : tensors) entries.push_back({name, DType::f32, {1}});
    formats::SafetensorsWriter writer(root_ + "/model.safetensors", entries, {{"format", "pt"}});
    for (const formats::TensorEntry& entry : writer.order()) {
      for (const auto& [name, number] : tensors) {
        if (name == entry.name) writer.write(name, std::as_bytes(std::span(&number, 1)));
      }
    }
    writer.close();
    std::ofstream(root_ + "/config.json") << config;
    std::vector<std::string> names;
    Checkpoint checkpoint(root_);
    for (const auto& [name, tensor] : checkpoint.tensors()) {
      names.push_back(fmt::format("{}={}", name, checkpoint.read_whole(name).item<float>()));
    }
    return names;
  };
  const char* tied = R"({"model_type":"gpt2"})";
  std::vector<std::string> want = {"transformer.h.0.attn.c_attn.bias=2",
                                   "transformer.wte.weight=1"};
  EXPECT_EQ(write({{"wte.weight", 1},
                   {"h.0.attn.c_attn.bias", 2},
                   {"h.0.attn.bias", 3},
                   {"h.0.attn.masked_bias", 4}},
                  tied),
            want);
  EXPECT_EQ(write({{"transformer.wte.weight", 1},
                   {"transformer.h.0.attn.c_attn.bias", 2},
                   {"transformer.h.0.attn.bias", 3},
                   {"lm_head.weight", 1}},
                  tied),
            want);
  EXPECT_THROW(write({{"wte.weight", 1}, {"lm_head.weight", 2}}, tied), base::FormatError);
  EXPECT_THROW(write({{"wte.weight", 1}, {"transformer.wte.weight", 1}}, tied), base::FormatError);
  EXPECT_EQ(write({{"wte.weight", 1}, {"lm_head.weight", 2}},
                  R"({"model_type":"gpt2","tie_word_embeddings":false})")
                .size(),
            2u);
}

}  // namespace
}  // namespace trireme::checkpoint
