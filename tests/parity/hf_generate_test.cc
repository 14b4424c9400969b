// Encoder-decoders continue as transformers' generate does: greedily and by beam search, on every
// layout.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "tests/support/shards.h"
#include "trireme/base/error.h"
#include "trireme/generate/generator.h"
#include "trireme/train/assembly.h"

namespace trireme::generate {
namespace {

using Ids = std::vector<std::vector<int64_t>>;

Ids continue_on(const base::Json& tree, const test::Tensors& weights, const layout::Coord& sizes,
                base::DType dtype, const Request& request) {
  Ids out;
  layout::Mesh mesh(sizes);
  dist::run_ranks(mesh.size(), [&](dist::World& world) {
    auto run = train::assemble(tree, train::forward_placement(mesh, dtype, 1), 1, world);
    train::make_parameters(*run, false, nullptr);
    for (nn::Param* p : run->model->store.params())
      test::scatter(weights.at(p->spec.name), *p, p->data);
    const auto result = generate(*run->model, run->mesh, request);
    if (world.rank() == 0)
      for (const Continuation& one : result) out.push_back(one.new_ids);
  });
  return out;
}

TEST(HfGenerate, EncoderDecodersContinueAsTransformersDo) {
  const char* root = std::getenv("TRIREME_HF_FIXTURES");
  if (!root) GTEST_SKIP() << "make_hf_encoders.py has not run";
  int cases = 0;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    const std::filesystem::path folder = entry.path();
    if (!std::filesystem::exists(folder / "generate.json")) continue;
    ++cases;
    const base::Json facts = base::read_json(folder / "generate.json"),
                     tree = base::read_json(folder / "config.json");
    const auto dtype = base::read_json(folder / "case.json")["dtype"] == "fp64" ? base::DType::f64
                                                                                : base::DType::f32;
    const test::Tensors weights = test::read_tensors(folder / "model.safetensors");
    Request request{.prompts = facts["prompts"].get<Ids>(),
                    .max_new_tokens = facts["max_new_tokens"],
                    .sampling = {.greedy = true, .no_repeat_ngram_size = 2}};
    for (const layout::Coord& sizes : {layout::Coord{.pp = 1, .dp = 1, .tp = 1},
                                       {.pp = 1, .dp = 1, .tp = 2},
                                       {.pp = 2, .dp = 1, .tp = 1},
                                       {.pp = 4, .dp = 1, .tp = 1},
                                       {.pp = 2, .dp = 1, .tp = 2}}) {
      SCOPED_TRACE(fmt::format("{} pp {} tp {}", folder.filename().string(), sizes.pp, sizes.tp));
      request.beams = {};
      EXPECT_EQ(continue_on(tree, weights, sizes, dtype, request), facts["greedy"].get<Ids>());
      request.beams = {.count = 3};
      EXPECT_EQ(continue_on(tree, weights, sizes, dtype, request), facts["beams"].get<Ids>());
    }
  }
  EXPECT_GE(cases, 2);
}

TEST(HfGenerate, RefusesASourceThatTheEncoderCannotHold) {
  const base::Json tree = {{"family", "bart"},
                           {"d_model", 8},
                           {"encoder_layers", 1},
                           {"decoder_layers", 1},
                           {"encoder_attention_heads", 2},
                           {"decoder_attention_heads", 2},
                           {"encoder_ffn_dim", 8},
                           {"decoder_ffn_dim", 8},
                           {"vocab_size", 11},
                           {"max_position_embeddings", 4}};
  const layout::Mesh mesh({.pp = 1, .dp = 1, .tp = 1});
  dist::run_ranks(1, [&](dist::World& world) {
    auto run = train::assemble(tree, train::forward_placement(mesh, base::DType::f32, 1), 1, world);
    train::make_parameters(*run, false, nullptr);
    EXPECT_THROW(
        generate(*run->model, run->mesh, {.prompts = {{3, 4, 5, 6, 7}}, .max_new_tokens = 2}),
        base::ConfigError);
    EXPECT_THROW(generate(*run->model, run->mesh, {.prompts = {{3}}, .max_new_tokens = 5}),
                 base::ConfigError);
    EXPECT_EQ(generate(*run->model, run->mesh, {.prompts = {{3, 4, 5, 6}}, .max_new_tokens = 4})[0]
                  .new_ids.size(),
              4u);
  });
}

TEST(HfGenerate, RefusesAnEncoder) {
  const base::Json tree = {{"family", "bert"}, {"hidden_size", 8}, {"num_hidden_layers", 1}, {"num_attention_heads", 2},
                           {"intermediate_size", 8}, {"vocab_size", 11}, {"max_position_embeddings", 4}};
  const layout::Mesh mesh({.pp = 1, .dp = 1, .tp = 1});
  dist::run_ranks(1, [&](dist::World& world) {
    auto run = train::assemble(tree, train::forward_placement(mesh, base::DType::f32, 1), 1, world);
    train::make_parameters(*run, false, nullptr);
    EXPECT_THROW(generate(*run->model, run->mesh, {.prompts = {{3}}, .max_new_tokens = 2}), base::ConfigError);
  });
}

}  // namespace
}  // namespace trireme::generate
