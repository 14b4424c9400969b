// Real weights (MiniLM) from a Hugging Face folder: the tokenizer's ids, and sentence embeddings on
// several layouts.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/support/shards.h"
#include "trireme/pipeline/executor.h"
#include "trireme/text/tokenizer.h"
#include "trireme/train/assembly.h"

namespace trireme {
namespace {

struct Sentences {
  base::Json facts;
  test::Tensors want;
};

/// Nothing where the fixtures were not made.
std::optional<Sentences> read_sentences() {
  const char* root = std::getenv("TRIREME_HF_FIXTURES");
  const std::string folder = root ? std::string(root) + "/minilm" : "";
  if (!std::filesystem::exists(folder + "/minilm.json")) return std::nullopt;
  return Sentences{base::read_json(folder + "/minilm.json"),
                   test::read_tensors(folder + "/expected.safetensors")};
}

TEST(MiniLm, TokenIdsAreHuggingFaces) {
  const auto sentences = read_sentences();
  if (!sentences) GTEST_SKIP() << "make_hf_minilm.py has not run";
  const auto tokenizer = text::Tokenizer::load(sentences->facts["folder"]);
  const at::Tensor mask = sentences->want.at("attention_mask");
  for (int64_t row = 0; row < mask.size(0); ++row) {
    const std::string sentence = sentences->facts["sentences"][row];
    const std::vector<int32_t> ids = tokenizer->encode(sentence, true);
    ASSERT_EQ(std::ssize(ids), mask[row].sum().item<int64_t>()) << sentence;
    for (size_t i = 0; i < ids.size(); ++i)
      EXPECT_EQ(ids[i], sentences->want.at("input_ids")[row][i].item<int64_t>())
          << sentence << " token " << i;
  }
}

TEST(MiniLm, SentenceEmbeddingsAreHuggingFacesOnEveryLayout) {
  const auto sentences = read_sentences();
  if (!sentences) GTEST_SKIP() << "make_hf_minilm.py has not run";
  const checkpoint::Checkpoint weights(sentences->facts["folder"].get<std::string>());
  base::Json tree = weights.model_config();
  tree["head"] = "embedding";
  tree["normalize"] = true;
  const at::Tensor want = sentences->want.at("embedding").to(at::kDouble);
  struct Layout {
    layout::Coord sizes;
    bool sequence_parallel;
  };
  for (const Layout& l : {Layout{{.pp = 1, .dp = 1, .tp = 1}, false},
                          {{.pp = 1, .dp = 1, .tp = 2}, true},
                          {{.pp = 2, .dp = 1, .tp = 3}, false},
                          {{.pp = 3, .dp = 1, .tp = 1}, false},
                          {{.pp = 2, .dp = 1, .tp = 2}, true}}) {
    SCOPED_TRACE(fmt::format("pp {} tp {} sp {}", l.sizes.pp, l.sizes.tp, l.sequence_parallel));
    at::Tensor got;
    train::Placement placement =
        train::forward_placement(layout::Mesh(l.sizes), base::DType::f32, 1);
    placement.options.sequence_parallel = l.sequence_parallel;
    dist::run_ranks(placement.mesh.size(), [&](dist::World& world) {
      auto run = train::assemble(tree, placement, want.size(0), world);
      // The folder has a pooler too, which this head does not use.
      const checkpoint::Mismatch mismatch = train::make_parameters(*run, false, &weights, 0, false);
      EXPECT_TRUE(mismatch.missing.empty() && mismatch.shapes.empty()) << mismatch.text(5);
      EXPECT_EQ(mismatch.unexpected.size(), 2u);
      nn::Batch batch;
      for (const char* name : {"input_ids", "attention_mask"})
        batch.tensors.set(name, sentences->want.at(name));
      batch.rows = want.size(0);
      batch.seq = sentences->want.at("input_ids").size(1);
      batch.samples = at::arange(batch.rows, at::kLong);
      pipeline::Executor executor(run->schedule, *run->model, run->mesh);
      auto result =
          executor.run(std::span(&batch, 1), {}, nn::Mode::eval, {.loss = false, .outputs = true});
      if (world.rank() == world.size() - 1) got = result.outputs[0].at("embedding").to(at::kDouble);
    });
    EXPECT_LT((got - want).abs().max().item<double>(), 1e-5);
    EXPECT_LT((at::matmul(got, got.t()) - at::matmul(want, want.t())).abs().max().item<double>(),
              1e-5);
  }
}

}  // namespace
}  // namespace trireme
