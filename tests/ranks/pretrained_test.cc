// One call lays a model out: every option of it does what it says, on one rank and on several.
#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <mutex>
#include <optional>
#include <type_traits>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/checkpoint/convert.h"
#include "trireme/checkpoint/hf.h"
#include "trireme/models/registry.h"
#include "trireme/models/vocabulary.h"
#include "trireme/train/execute_pipeline.h"
#include "trireme/train/pretrained.h"

extern "C" void trireme_plugin();  // examples/own_head

namespace trireme::train {
namespace {

using base::Json;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr int64_t kRows = 4, kSeq = 6, kMicroBatches = 2;

Json gpt2() {
  return {{"family", "gpt2"}, {"n_layer", 4}, {"n_embd", 16}, {"n_head", 4}, {"n_positions", 16}, {"vocab_size", 37},
          {"resid_pdrop", 0.0}, {"embd_pdrop", 0.0}, {"attn_pdrop", 0.0}};
}

// A buffer with a place for each token beside the tables that three places share.
Json bart() {
  return {{"family", "bart"}, {"d_model", 16}, {"encoder_layers", 2}, {"decoder_layers", 2}, {"encoder_attention_heads", 2},
          {"decoder_attention_heads", 2}, {"encoder_ffn_dim", 24}, {"decoder_ffn_dim", 24}, {"vocab_size", 37},
          {"max_position_embeddings", 16}};
}

Json electra() {
  return {{"family", "electra"}, {"head", "masked_lm"}, {"hidden_size", 16}, {"embedding_size", 8}, {"num_hidden_layers", 2},
          {"num_attention_heads", 2}, {"intermediate_size", 24}, {"vocab_size", 37}, {"max_position_embeddings", 16}};
}

ParallelOptions options_of(int pp, int tp) {
  return {.tensor_parallel_size = tp, .pipeline_parallel_size = pp, .micro_batches = kMicroBatches};
}

std::vector<nn::Batch> make_batches(const dist::DeviceMesh& mesh) {
  const at::Tensor tokens = (at::arange(kRows).unsqueeze(1) * 5 + at::arange(kSeq + 1) * 3).remainder(37);
  std::vector<nn::Batch> batches;
  for (const at::Tensor& rows : tokens.chunk(kMicroBatches)) {
    const at::Tensor own = rows.tensor_split(mesh.dp.size())[mesh.dp.rank()];
    nn::State fields{{"input_ids", own.narrow(1, 0, kSeq)}, {"labels", own.narrow(1, 1, kSeq)}};
    batches.push_back({.tensors = fields, .samples = own.select(1, 0).contiguous(), .rows = own.size(0), .seq = kSeq});
  }
  return batches;
}

/// The loss of each of `steps` steps.
std::vector<double> train(ParallelModel& model, dist::World& world, int steps, int zero_stage = 0) {
  Assembly& own = *model.assembly;
  config::Optim options{.lr = 1e-2, .eps = 1e-4};
  for (const std::string& pattern : model.options.freeze) options.groups.push_back({.pattern = pattern, .freeze = true});
  optim::ShardedOptimizer optimizer(world, own.mesh, own.model->store, options, zero_stage);
  OverlappedSync overlap(optimizer.sync(), own.parameters.get());
  pipeline::Executor executor(own.schedule, *own.model, own.mesh, model.stage, zero_stage > 0 ? &overlap : nullptr);
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    const auto batches = make_batches(own.mesh);
    losses.push_back(execute_pipeline(executor, optimizer, batches, {.seed = 1, .step = static_cast<uint64_t>(step)}).loss());
    optimizer.step(1e-2);
  }
  return losses;
}

/// Runs `body` on pp x dp x tp ranks; what rank 0 returns.
template <class Body>
auto on(int pp, int dp, int tp, const Body& body) {
  std::optional<std::invoke_result_t<Body, dist::World&>> out;
  std::mutex mutex;
  dist::run_ranks(pp * dp * tp, [&](dist::World& world) {
    auto mine = body(world);
    const std::lock_guard lock(mutex);
    if (world.rank() == 0) out = std::move(mine);
  });
  return std::move(*out);
}

/// Saves a new model and says what it was trained to before.
std::vector<double> make(const Json& config, const ParallelOptions& options, int dp, const std::string& folder, int steps = 0) {
  return on(options.pipeline_parallel_size, dp, options.tensor_parallel_size, [&](dist::World& world) {
    ParallelModel model = from_config(config, options, world);
    const std::vector<double> losses = steps > 0 ? train(model, world, steps, options.zero_stage) : std::vector<double>();
    save_pretrained(model, folder, world);
    return losses;
  });
}

/// The largest difference of two folders' weights; their names must agree.
double apart(const std::string& a, const std::string& b) {
  double largest = 0;
  for (const checkpoint::TensorDifference& d : checkpoint::difference(checkpoint::Checkpoint(a), checkpoint::Checkpoint(b))) {
    EXPECT_EQ(d.what, "values") << d.name;
    largest = std::max(largest, d.max_abs);
  }
  return largest;
}

void expect_near(const std::vector<double>& a, const std::vector<double>& b, double bound) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], bound) << "step " << i;
}

TEST(OneCall, AConfigurationDrawsTheSameWeightsOnAnyLayout) {
  const test::TemporaryFolder folder;
  for (const auto& [name, config] : {std::pair("gpt2", gpt2()), {"bart", bart()}}) {
    const std::string one = folder / fmt::format("{}_one", name), many = folder / fmt::format("{}_many", name);
    make(config, options_of(1, 1), 1, one);
    make(config, options_of(2, 2), 2, many);
    EXPECT_EQ(apart(one, many), 0) << name;
  }
  ParallelOptions other = options_of(1, 1);
  other.seed = 8;
  make(gpt2(), other, 1, folder / "seed");
  EXPECT_GT(apart(folder / "gpt2_one", folder / "seed"), 0.01);
}

TEST(OneCall, OptionsLeaveTheLossAsItIs) {
  const test::TemporaryFolder folder;
  const std::vector<double> one = make(gpt2(), options_of(1, 1), 1, folder / "one", 3);
  EXPECT_LT(one.back(), one.front());
  struct Case {
    const char* name;
    int pp, dp, tp;
    void (*set)(ParallelOptions&);
  };
  const Case cases[] = {
      {"recompute", 2, 1, 1, [](ParallelOptions& o) { o.gradient_checkpointing = true; }},
      {"sequence", 1, 1, 2, [](ParallelOptions& o) { o.sequence_parallel = true; }},
      {"plain", 1, 1, 2, [](ParallelOptions& o) { o.fuse = false; }},
      {"gpipe", 2, 1, 1, [](ParallelOptions& o) { o.schedule = "gpipe"; }},
      {"zero1", 1, 2, 1, [](ParallelOptions& o) { o.zero_stage = 1; }},
      {"zero2", 1, 2, 1, [](ParallelOptions& o) { o.zero_stage = 2; }},
      {"zero3", 1, 2, 1, [](ParallelOptions& o) { o.zero_stage = 3; }},
      {"all", 2, 2, 2, [](ParallelOptions& o) { o.sequence_parallel = o.gradient_checkpointing = true, o.zero_stage = 3; }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    ParallelOptions options = options_of(c.pp, c.tp);
    c.set(options);
    expect_near(make(gpt2(), options, c.dp, folder / c.name, 3), one, 1e-5);
    // Keys' biases have no gradient but rounding, which AdamW makes steps of.
    EXPECT_LT(apart(folder / "one", folder / c.name), 3e-2);
  }
  on(1, 1, 1, [](dist::World& world) {
    ParallelOptions options = options_of(1, 1);
    options.gradient_checkpointing = true;
    EXPECT_EQ(from_config(gpt2(), options, world).stage.recompute_every, 1);
    options.schedule = "nonsense";
    EXPECT_THROW(from_config(gpt2(), options, world), base::ConfigError);
    EXPECT_THAT([&] { from_config(gpt2(), options_of(1, 3), world); }, ThrowsMessage<base::ConfigError>(HasSubstr("multiple of 3")));
    return 0;
  });
}

TEST(OneCall, ItsTypeIsTheWeightsAndTheFiles) {
  const test::TemporaryFolder folder;
  for (const auto& [type, word] : {std::pair(base::DType::bf16, "bfloat16"), {base::DType::f64, "float64"}}) {
    ParallelOptions options = options_of(2, 1);
    options.dtype = type;
    const std::vector<double> losses = make(gpt2(), options, 1, folder / word, 3);
    EXPECT_LT(losses.back(), losses.front());
    const checkpoint::Checkpoint saved(folder / word);
    for (const auto& [name, tensor] : saved.tensors()) EXPECT_EQ(tensor.dtype, type) << name;
    on(1, 1, 1, [&](dist::World& world) {
      const ParallelModel model = from_pretrained(folder / word, options_of(1, 1), world);
      for (const nn::Param* param : model.assembly->model->store.params())
        EXPECT_EQ(param->data.scalar_type(), at::kFloat) << param->spec.name;
      return 0;
    });
  }
}

TEST(OneCall, KeysBesideTheModelWin) {
  const test::TemporaryFolder folder;
  make(gpt2(), options_of(1, 1), 1, folder / "base");
  on(1, 1, 1, [&](dist::World& world) {
    ParallelOptions options = options_of(1, 1);
    options.config = {{"attn_pdrop", 0.25}, {"layer_norm_epsilon", 1e-3}};
    const ParallelModel model = from_pretrained(folder / "base", options, world);
    EXPECT_EQ(model.config["attn_pdrop"], 0.25);
    EXPECT_EQ(model.config["layer_norm_epsilon"], 1e-3);
    EXPECT_EQ(model.config["n_embd"], 16);
    options.config = {{"n_layers", 3}};
    EXPECT_THAT([&] { from_pretrained(folder / "base", options, world); }, ThrowsMessage<base::ConfigError>(HasSubstr("n_layer")));
    options.config = {{"family", "llama"}};
    EXPECT_THROW(from_pretrained(folder / "base", options, world), base::ConfigError);
    return 0;
  });
}

TEST(OneCall, WeightsThatAreNotThereAreDrawnWhereThatIsAllowed) {
  const test::TemporaryFolder folder;
  make(gpt2(), options_of(1, 1), 1, folder / "base");
  for (int pp : {1, 2})
    on(pp, 1, 1, [&](dist::World& world) {
      ParallelOptions options = options_of(pp, 1);
      options.config = {{"n_layer", 5}};
      EXPECT_THAT([&] { from_pretrained(folder / "base", options, world); }, ThrowsMessage<base::FormatError>(HasSubstr("transformer.h.4")));
      options.strict = false;
      const ParallelModel model = from_pretrained(folder / "base", options, world);
      EXPECT_EQ(model.mismatch.missing.size(), 12u);
      EXPECT_TRUE(model.mismatch.unexpected.empty());
      for (const std::string& name : model.mismatch.missing) EXPECT_THAT(name, HasSubstr("transformer.h.4."));
      return 0;
    });
}

TEST(OneCall, WhatIsFrozenStays) {
  const test::TemporaryFolder folder;
  make(gpt2(), options_of(1, 1), 1, folder / "base");
  for (int zero : {0, 2}) {
    ParallelOptions options = options_of(1, 2);
    options.freeze = {"transformer.w*", "*.ln_1.*"};
    options.zero_stage = zero;
    make(gpt2(), options, 2, folder / fmt::format("tuned{}", zero), 2);
    std::vector<std::string> moved;
    for (const auto& d : checkpoint::difference(checkpoint::Checkpoint(folder / "base"),
                                                checkpoint::Checkpoint(folder / fmt::format("tuned{}", zero))))
      moved.push_back(d.name);
    EXPECT_EQ(moved.size(), 4u * 10 + 2) << fmt::format("{}", fmt::join(moved, " "));
    for (const std::string& name : moved) {
      EXPECT_FALSE(name.starts_with("transformer.w")) << name;
      EXPECT_EQ(name.find(".ln_1."), name.npos) << name;
    }
  }
  on(1, 1, 1, [&](dist::World& world) {
    ParallelOptions options = options_of(1, 1);
    options.freeze = {"transformer.wxe"};
    EXPECT_THAT([&] { from_config(gpt2(), options, world); }, ThrowsMessage<base::ConfigError>(HasSubstr("transformer.wxe")));
    options.freeze = {};
    options.gradients = false;
    const ParallelModel model = from_config(gpt2(), options, world);
    for (const nn::Param* param : model.assembly->model->store.params())
      EXPECT_FALSE(param->grad.defined());
    return 0;
  });
}

TEST(OneCall, UnderTheNamesThatOslosUsersKnow) {
  const test::TemporaryFolder folder;
  on(2, 1, 2, [&](dist::World& world) {
    const ParallelModel model = from_config_with_parallel(gpt2(), options_of(2, 2), world);
    save_pretrained(model, folder / "plain", world);
    save_pretrained_with_parallel(model, folder / "split", world);
    save_pretrained_with_parallel(model, folder / "merged", world, true);
    EXPECT_THROW(save_pretrained_with_parallel(model, folder / "merged", world, true), base::ConfigError);
    return 0;
  });
  EXPECT_TRUE(std::filesystem::exists(folder / "split/pytorch_model_tp=1_pp=1.bin"));
  EXPECT_TRUE(std::filesystem::exists(folder / "merged/pytorch_model.bin"));
  for (const char* name : {"split", "merged"})
    on(1, 1, 4, [&](dist::World& world) {
      save_pretrained(from_pretrained_with_parallel(folder / name, options_of(1, 4), world), folder / fmt::format("{}_again", name), world);
      return 0;
    });
  EXPECT_EQ(apart(folder / "plain", folder / "split_again"), 0);
  EXPECT_EQ(apart(folder / "plain", folder / "merged_again"), 0);
}

// What `ckpt convert --vocab-size` writes, which is compared with transformers' own.
void convert(const std::string& from, const std::string& to, int64_t size) {
  checkpoint::ConvertOptions options;
  options.resize = [size](const Json& config) {
    const auto parameters = [](const Json& tree) { return describe(tree, forward_placement(layout::Mesh(), base::DType::f32, 1), 1).parameters; };
    const Json tree = models::with_vocabulary(config, size);
    return checkpoint::ConvertOptions::Resize{.config = tree, .before = parameters(config), .after = parameters(tree)};
  };
  checkpoint::convert_to_hf(checkpoint::Checkpoint(from), to, options);
}

TEST(ResizedVocabulary, IsThatOfTheFilesOnAnyLayout) {
  const test::TemporaryFolder folder;
  struct Layout {
    int pp, dp, tp, zero;
  };
  for (const auto& [name, config] : {std::pair("gpt2", gpt2()), {"bart", bart()}, {"electra", electra()}}) {
    const auto at = [&, name = name](const std::string& what) { return folder / fmt::format("{}_{}", name, what); };
    // Trained or random biases, so that no mean is zero.
    on(1, 1, 1, [&, config = config](dist::World& world) {
      const ParallelModel model = from_config(config, options_of(1, 1), world);
      int64_t seed = 0;
      for (const nn::Param* param : model.assembly->model->store.params())
        param->data.copy_(at::arange(param->data.numel()).mul(0.61).add(static_cast<double>(++seed)).sin().view(param->data.sizes()));
      save_pretrained(model, at("base"), world);
      return 0;
    });
    for (int64_t size : {29, 37, 50}) {
      convert(at("base"), at(fmt::format("want{}", size)), size);
      for (const Layout& l : {Layout{1, 1, 1, 0}, {2, 2, 2, 0}, {1, 2, 2, 3}}) {
        SCOPED_TRACE(fmt::format("{}, {} tokens, {} x {} x {}, ZeRO {}", name, size, l.pp, l.dp, l.tp, l.zero));
        const std::string got = at(fmt::format("got{}_{}{}{}{}", size, l.pp, l.dp, l.tp, l.zero));
        on(l.pp, l.dp, l.tp, [&](dist::World& world) {
          ParallelOptions options = options_of(l.pp, l.tp);
          options.zero_stage = l.zero;
          options.config = {{"vocab_size", 37}};
          ParallelModel model = from_pretrained(at("base"), options, world);
          resize_token_embeddings(model, size, world);
          EXPECT_EQ(model.config["vocab_size"], size);
          EXPECT_EQ(model.assembly->model->def.vocab_size, size);
          save_pretrained(model, got, world);
          return 0;
        });
        EXPECT_EQ(apart(at(fmt::format("want{}", size)), got), 0);
      }
    }
  }
}

TEST(OneCall, TakesTheProcessorOfImagesAlong) {
  const test::TemporaryFolder folder;
  const Json vit = {{"family", "vit"}, {"hidden_size", 8}, {"num_hidden_layers", 2}, {"num_attention_heads", 2},
                    {"intermediate_size", 8}, {"image_size", 8}, {"patch_size", 4}};
  const std::string settings = R"({"image_mean": [0.1, 0.2, 0.3], "size": {"height": 8, "width": 8}})";
  on(1, 1, 1, [&](dist::World& world) {
    save_pretrained(from_config(vit, options_of(1, 1), world), folder / "base", world);
    return 0;
  });
  base::FileWriter writer(folder / "base/preprocessor_config.json");
  writer.write(settings);
  writer.close();
  on(2, 1, 2, [&](dist::World& world) {
    const ParallelModel model = from_pretrained(folder / "base", options_of(2, 2), world);
    save_pretrained(model, folder / "whole", world);
    save_pretrained(model, folder / "pickled", world, SaveFormat::bin);
    return 0;
  });
  for (const char* name : {"whole", "pickled"})
    EXPECT_EQ(base::read_file(folder / fmt::format("{}/preprocessor_config.json", name)), settings);
}

TEST(ResizedVocabulary, TrainsOnWithItsTies) {
  const std::vector<double> one = on(1, 1, 1, [](dist::World& world) {
    ParallelModel model = from_config(gpt2(), options_of(1, 1), world);
    resize_token_embeddings(model, 43, world);
    return train(model, world, 2);
  });
  const std::vector<double> many = on(2, 1, 2, [](dist::World& world) {
    ParallelModel model = from_config(gpt2(), options_of(2, 2), world);
    resize_token_embeddings(model, 43, world);
    return train(model, world, 2);
  });
  expect_near(many, one, 1e-5);
}

TEST(ResizedVocabulary, IsRefusedWhereThereIsNone) {
  on(1, 1, 1, [](dist::World& world) {
    ParallelModel model = from_config({{"family", "vit"}, {"hidden_size", 8}, {"num_hidden_layers", 1}, {"num_attention_heads", 2},
                                       {"intermediate_size", 8}, {"image_size", 8}, {"patch_size", 4}},
                                      options_of(1, 1), world);
    EXPECT_THAT([&] { resize_token_embeddings(model, 9, world); }, ThrowsMessage<base::ConfigError>(HasSubstr("no vocabulary")));
    ParallelModel opt = from_config({{"family", "opt"}, {"hidden_size", 8}, {"num_hidden_layers", 1}, {"num_attention_heads", 2},
                                     {"ffn_dim", 8}, {"vocab_size", 37}, {"pad_token_id", 30}},
                                    options_of(1, 1), world);
    EXPECT_THAT([&] { resize_token_embeddings(opt, 20, world); }, ThrowsMessage<base::ConfigError>(HasSubstr("pad_token_id")));
    return 0;
  });
}

// docs/add-a-model.md's head on BERT's encoder.
TEST(OwnHead, BeginsWithAPretrainedEncoderOnAnyLayout) {
  trireme_plugin();
  const test::TemporaryFolder folder;
  Json bert = electra();
  bert["family"] = "bert", bert["hidden_dropout_prob"] = bert["attention_probs_dropout_prob"] = 0.0;
  bert.erase("embedding_size");
  make(bert, options_of(1, 1), 1, folder / "bert");
  const auto graded = [&](int pp, int dp, int tp, bool sequence) {
    return on(pp, dp, tp, [&](dist::World& world) {
      ParallelOptions options = options_of(pp, tp);
      options.sequence_parallel = sequence;
      options.config = {{"family", "bert_grades"}};
      EXPECT_THROW(from_pretrained(folder / "bert", options, world), base::FormatError);
      options.strict = false;
      ParallelModel model = from_pretrained(folder / "bert", options, world);
      EXPECT_THAT(model.mismatch.missing, testing::UnorderedElementsAre("grade.weight", "grade.bias"));
      const checkpoint::Checkpoint held(folder / "bert");
      const nn::Param* words = model.assembly->model->store.find("bert.embeddings.word_embeddings.weight");
      if (words && tp == 1) {
        EXPECT_TRUE(at::equal(words->data, held.read_whole(words->spec.name)));
      }
      Assembly& own = *model.assembly;
      optim::ShardedOptimizer optimizer(world, own.mesh, own.model->store, {.lr = 1e-2, .eps = 1e-4}, 0);
      pipeline::Executor executor(own.schedule, *own.model, own.mesh, model.stage);
      std::vector<double> losses;
      for (uint64_t step = 0; step < 4; ++step) {
        std::vector<nn::Batch> batches = make_batches(own.mesh);
        for (nn::Batch& batch : batches) batch.tensors.set("labels", batch.tensors.at("input_ids").select(1, 0).to(at::kFloat) / 7);
        losses.push_back(execute_pipeline(executor, optimizer, batches, {.seed = 1, .step = step}).loss());
        optimizer.step(1e-2);
      }
      return losses;
    });
  };
  const std::vector<double> one = graded(1, 1, 1, false);
  EXPECT_LT(one.back(), one.front());
  expect_near(graded(2, 2, 2, true), one, 1e-5);
}

}  // namespace
}  // namespace trireme::train
