#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/ranks/checkpoint_support.h"
#include "trireme/checkpoint/convert.h"
#include "trireme/checkpoint/folder.h"
#include "trireme/dist/redistribute.h"
#include "trireme/formats/safetensors.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
using base::DType;
using layout::Mesh;
using nn::TensorPart;
using testing::HasSubstr;

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

TEST_F(CheckpointTest, NotStrictLoadsWhatBothHaveAndListsTheRest) {
  Checkpoint checkpoint(save_on(Mesh({1, 1, 2}), false));
  layout::ModelDescription model = toy_model();
  model.parameters[0].shape = {14, 6};
  model.parameters[1].name = "transformer.other";
  RankState want = state_of(model, Mesh(), 0, false, true),
            got = state_of(model, Mesh(), 0, false, false);
  const Mismatch found = load_parameters(checkpoint, got.parameters, model.parameters, false);
  EXPECT_EQ(found.common, static_cast<int64_t>(model.parameters.size()) - 2);
  EXPECT_THAT(found.missing, testing::ElementsAre("transformer.other"));
  EXPECT_THAT(found.unexpected, testing::ElementsAre("transformer.scale"));
  EXPECT_THAT(found.shapes,
              testing::ElementsAre("transformer.wte.weight is [13, 6], expected [14, 6]"));
  EXPECT_EQ(found.text(9),
            "missing: transformer.other; not of the model: transformer.scale; of another shape: "
            "transformer.wte.weight is [13, 6], expected [14, 6]");
  for (size_t i = 0; i < want.parameters.size(); ++i) {
    const bool common = i >= 2;
    EXPECT_TRUE(at::equal(got.parameters[i].data, common ? want.parameters[i].data
                                                         : at::zeros_like(want.parameters[i].data)))
        << want.parameters[i].name;
  }
  EXPECT_TRUE(load_parameters(checkpoint, {}, toy_model().parameters, false).empty());
  for (layout::ParamSpec& spec : model.parameters) spec.name += "x";
  EXPECT_THROW(load_parameters(checkpoint, {}, model.parameters, false), base::FormatError);
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

  options.pickled = true;
  options.max_shard_bytes = 700;
  convert_to_hf(Checkpoint(split), root_ + "/bin", options);
  EXPECT_THAT(listing(root_ + "/bin"),
              testing::IsSupersetOf({"pytorch_model-00002-of-00006.bin",
                                     "pytorch_model-00006-of-00006.bin",
                                     "pytorch_model.bin.index.json"}));
  expect_loads_on(root_ + "/bin", Mesh({2, 1, 2}), false, false);
  options.optimizer = true;
  EXPECT_THROW(convert_to_hf(Checkpoint(split), root_ + "/no", options), base::ConfigError);
  options.pickled = false;
  convert_to_hf(Checkpoint(split), root_ + "/shards", options);
  EXPECT_THAT(listing(root_ + "/shards"),
              testing::IsSupersetOf({"model-00001-of-00006.safetensors", "model.safetensors.index.json",
                                     "optimizer.safetensors.index.json"}));
  EXPECT_GT(Checkpoint(root_ + "/shards").verify().files, 2);
  expect_loads_on(root_ + "/shards", Mesh({2, 1, 2}), true);
  fs::remove(root_ + "/shards/model-00002-of-00006.safetensors");
  EXPECT_THAT(refusal(root_ + "/shards"), HasSubstr("model-00002-of-00006.safetensors"));
  options.max_shard_bytes.reset();
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
