// The configuration's files: reading, merging, references, overrides, refusals, and the resolved
// file.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/config/load.h"

namespace trireme::config {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string error_of(std::string_view text, const std::vector<std::string>& overrides = {}) {
  try {
    parse(text, "run.yaml", overrides);
  } catch (const base::ConfigError& e) {
    return e.what();
  }
  return "no error";
}

/// A folder of files that goes away with the test.
class Files {
 public:
  std::string write(const std::string& name, std::string_view text) {
    std::filesystem::path path = root_.path() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return path.string();
  }

 private:
  test::TemporaryFolder root_;
};

TEST(Config, ReadsEverySection) {
  RunConfig config = parse(R"(
model: {family: gpt2, n_layer: 4, layer_norm_epsilon: 1e-5, tie_word_embeddings: true, activation_function: gelu_new}
tokenizer: out/tokenizer
data:
  train: [{path: a, weight: 0.5}, {path: b}]
  seq_length: 64
train:
  train_iter: 200
  train_micro_batch_size: 2
  dist: {data_parallel_size: null, tensor_parallel_size: 2, custom_pipeline_stage_id: [0, 0, 1]}
  zero_optimization: {enabled: true, stage: 1}
optim: {lr: 6.0e-4, betas: [0.9, 0.95], clip_grad_norm_type: .inf, eps: 1e-8}
)",
                           "run.yaml");
  EXPECT_EQ(config.model.dump(),
            R"({"family":"gpt2","n_layer":4,"layer_norm_epsilon":1e-05,"tie_word_embeddings":true,)"
            R"("activation_function":"gelu_new"})");
  EXPECT_EQ(config.tokenizer, "out/tokenizer");
  EXPECT_EQ(config.data.train, (std::vector<DataSource>{{"a", 0.5}, {"b", 1.0}}));
  EXPECT_EQ(config.train.train_iter, 200);
  EXPECT_EQ(config.train.dist.data_parallel_size, std::nullopt);
  EXPECT_EQ(config.train.dist.custom_pipeline_stage_id, (std::vector<int>{0, 0, 1}));
  EXPECT_EQ(config.train.zero_optimization.effective_stage(), 1);
  EXPECT_EQ(config.optim.lr, 6e-4);
  EXPECT_TRUE(std::isinf(config.optim.clip_grad_norm_type));
  EXPECT_EQ(config.optim.eps, 1e-8);
}

TEST(Config, ReadsJsonAndEmptySections) {
  RunConfig config = parse(
      R"({"model": {"family": "gpt2"}, "train": {"seed": 3, "output_dir": "/tmp/a b"}, "data": null})",
      "run.json");
  EXPECT_EQ(config.train.seed, 3);
  EXPECT_EQ(config.train.output_dir, "/tmp/a b");
  EXPECT_EQ(parse("", "run.yaml"), RunConfig{});
}

TEST(Config, TypesOfTheModelTreeAreThoseOfYaml12) {
  Json model =
      parse(
          "model: {a: yes, b: '2', c: 010, d: -3, e: 2.0, f: null, g: [1, x], h: {i: .5}, j: 0x10}",
          "run.yaml")
          .model;
  EXPECT_EQ(
      model.dump(),
      R"({"a":"yes","b":"2","c":"010","d":-3,"e":2.0,"f":null,"g":[1,"x"],"h":{"i":0.5},"j":"0x10"})");
}

TEST(Config, OverridesMergeCreateAndIndex) {
  RunConfig config =
      parse("data: {train: [{path: a}, {path: b}]}\nmodel: {n_layer: 2}", "run.yaml",
            {"train.dist.tensor_parallel_size=2", "data.train.1.path=c", "data.valid=[{path: v}]",
             "model.n_head=4", "train.scheduler={warmup_ratio: 0.5}", "train.output_dir=a=b",
             "optim.clip_grad_max_norm=null", "train.seed=1", "train.seed=2"});
  EXPECT_EQ(config.train.dist.tensor_parallel_size, 2);
  EXPECT_EQ(config.data.train[0].path, "a");
  EXPECT_EQ(config.data.train[1].path, "c");
  EXPECT_EQ(config.data.valid[0].path, "v");
  EXPECT_EQ(config.model.dump(), R"({"n_layer":2,"n_head":4})");
  EXPECT_EQ(config.train.scheduler.warmup_ratio, 0.5);
  EXPECT_EQ(config.train.scheduler.name, "warmup_cosine");
  EXPECT_EQ(config.train.output_dir, "a=b");
  EXPECT_EQ(config.optim.clip_grad_max_norm, std::nullopt);
  EXPECT_EQ(config.train.seed, 2);
}

TEST(Config, StageOrDtypeWithoutEnabledSwitchesOn) {
  EXPECT_EQ(parse("train: {zero_optimization: {stage: 1}}", "f")
                .train.zero_optimization.effective_stage(),
            1);
  EXPECT_TRUE(parse("train: {amp: {dtype: fp16}}", "f").train.amp.enabled);
  EXPECT_EQ(parse("train: {zero_optimization: {stage: 1, enabled: false}}", "f")
                .train.zero_optimization.effective_stage(),
            0);
  std::string off = "train: {zero_optimization: {stage: 1, enabled: false}}";
  EXPECT_EQ(parse(off, "f", {"train.zero_optimization.stage=2"})
                .train.zero_optimization.effective_stage(),
            2);
  EXPECT_EQ(
      parse(off, "f", {"train.zero_optimization.stage=2", "train.zero_optimization.enabled=false"})
          .train.zero_optimization.effective_stage(),
      0);
}

TEST(Config, IncludesMergeInOrderRelativeToTheirFile) {
  Files files;
  files.write("base/deep.yaml", "train: {seed: 1, log_period: 1, train_iter: 1}");
  files.write("base/first.yaml", "includes: [deep.yaml]\ntrain: {seed: 2}");
  files.write("second.yaml", "train: {log_period: 5}\ndata: {train: [{path: a}, {path: b}]}");
  std::string path = files.write(
      "run.yaml", "includes: [base/first.yaml, second.yaml]\ndata: {train: [{path: c}]}");
  RunConfig config = load(path, {"train.train_iter=7"});
  EXPECT_EQ(config.train.seed, 2);
  EXPECT_EQ(config.train.log_period, 5);
  EXPECT_EQ(config.train.train_iter, 7);
  EXPECT_EQ(config.data.train, (std::vector<DataSource>{{"c", 1.0}}));
}

TEST(Config, RefusesCirclesOfIncludesAndMissingFiles) {
  Files files;
  files.write("b.yaml", "includes: [sub/../a.yaml]");
  std::string a = files.write("a.yaml", "includes: [b.yaml]");
  EXPECT_THAT([&] { load(a); }, ::testing::ThrowsMessage<base::ConfigError>(
                                    AllOf(HasSubstr("circle"), HasSubstr("b.yaml:1"))));
  std::string c = files.write("c.yaml", "train: {seed: 1}\nincludes: [none.yaml]");
  EXPECT_THAT([&] { load(c); }, ::testing::ThrowsMessage<base::ConfigError>(
                                    AllOf(HasSubstr("c.yaml:2"), HasSubstr("none.yaml"))));
  EXPECT_THAT([&] { load(a + "x"); },
              ::testing::ThrowsMessage<base::ConfigError>(HasSubstr("no such configuration")));
}

TEST(Config, ResolvesReferences) {
  ::setenv("CONFIG_TEST_SEED", "77", 1);
  ::unsetenv("CONFIG_TEST_NONE");
  RunConfig config = parse(R"(
model: {n_positions: "${data.seq_length}", base: &b {x: 1}, copy: *b, again: "${model.copy}"}
data: {seq_length: 128, train: [{path: "${env:CONFIG_TEST_NONE,some/where}/train"}]}
train:
  seed: ${env:CONFIG_TEST_SEED}
  output_dir: "out/${train.seed}_${train.scheduler.name}_$${kept}_$5"
  log_period: "${train.checkpointer.max_to_keep}"
)",
                           "run.yaml", {"data.seq_length=256"});
  EXPECT_EQ(config.model.dump(),
            R"({"n_positions":256,"base":{"x":1},"copy":{"x":1},"again":{"x":1}})");
  EXPECT_EQ(config.data.train[0].path, "some/where/train");
  EXPECT_EQ(config.train.seed, 77);
  EXPECT_EQ(config.train.output_dir, "out/77_warmup_cosine_${kept}_$5");
  EXPECT_EQ(config.train.log_period, 3);
}

TEST(Config, RefusesBadReferences) {
  EXPECT_THAT(error_of("train: {output_dir: \"${train.x}\"}"),
              HasSubstr("run.yaml:1: ${train.x} refers to a key"));
  EXPECT_THAT(error_of("model: {a: \"${model.b}\", b: \"${model.a}\"}"), HasSubstr("circle"));
  EXPECT_THAT(error_of("model: {a: {b: \"${model}\"}}"), HasSubstr("circle"));
  EXPECT_THAT(error_of("model: {a: \"${env:CONFIG_TEST_NONE}\"}"), HasSubstr("CONFIG_TEST_NONE"));
  EXPECT_THAT(error_of("model: {a: \"x${model.b\"}"), HasSubstr("closing brace"));
  EXPECT_THAT(error_of("model: {a: \"x${optim}\"}"), HasSubstr("a map cannot be part of a text"));
  std::string bomb = "model:\n  k0: [1, 1]\n";
  for (int i = 1; i < 30; ++i)
    bomb += fmt::format("  k{0}: [\"${{model.k{1}}}\", \"${{model.k{1}}}\"]\n", i, i - 1);
  EXPECT_THAT(error_of(bomb), HasSubstr("multiply"));
}

TEST(Config, RefusalsNameThePlaceAndTheNearestKey) {
  EXPECT_THAT(error_of("train:\n  dist:\n    tensor_paralel_size: 2"),
              HasSubstr("run.yaml:3: unknown key train.dist.tensor_paralel_size; did you mean "
                        "tensor_parallel_size?"));
  EXPECT_THAT(error_of("train: {eval_period: 3}"),
              HasSubstr("did you mean train.evaluation.eval_period?"));
  EXPECT_THAT(error_of("zzz: 1"), HasSubstr("known are plugins, model, tokenizer, data, train, optim"));
  EXPECT_THAT(error_of("", {"train.sed=1"}),
              HasSubstr("override train.sed=1: unknown key train.sed; did you mean seed?"));
  EXPECT_THAT(error_of("train:\n  seed: 1\n  seed: 2"),
              AllOf(HasSubstr("run.yaml:3"), HasSubstr("appears twice"), HasSubstr("run.yaml:2")));
  EXPECT_THAT(error_of("data: {train: [{path: a, wieght: 2}]}"),
              HasSubstr("unknown key data.train.0.wieght; did you mean weight?"));
}

TEST(Config, PluginsMayAddWords) {
  EXPECT_EQ(parse("{plugins: [libmine.so], optim: {name: mine, options: {a: 1}}}", "f").optim.options["a"], 1);
  EXPECT_EQ(parse("{plugins: [], train: {scheduler: {name: mine}}}", "f").train.scheduler.name, "mine");
  EXPECT_THROW(parse("{plugins: [], train: {dist: {schedule: mine}}}", "f"), base::ConfigError);
}

TEST(Config, RefusesWrongTypesAndRanges) {
  EXPECT_THAT(error_of("train: {dist: {sequence_parallel: yes}}"),
              HasSubstr("train.dist.sequence_parallel: expected true or false, given yes"));
  EXPECT_THAT(error_of("train: {seed: \"2\"}"),
              HasSubstr("train.seed: expected an integer, given the text \"2\""));
  EXPECT_THAT(error_of("train: {train_iter: 1e5}"), HasSubstr("expected an integer, given 1e5"));
  EXPECT_THAT(error_of("train: {train_iter: 010}"), HasSubstr("expected an integer, given 010"));
  EXPECT_THAT(error_of("train: {seed: null}"), HasSubstr("expected an integer, given null"));
  EXPECT_THAT(error_of("train: {seed: 99999999999999999999}"), HasSubstr("expected an integer"));
  EXPECT_THAT(error_of("train: {dist: {chunks: 3000000000}}"),
              HasSubstr("train.dist.chunks: expected 1 to 2147483647"));
  EXPECT_THAT(error_of("train: {seed: -1}"),
              HasSubstr("train.seed: expected at least 0, given -1"));
  EXPECT_THAT(error_of("train: {scheduler: {warmup_ratio: 1.5}}"),
              HasSubstr("expected 0 to 1, given 1.5"));
  EXPECT_THAT(error_of("optim: {lr: .inf}"), HasSubstr("optim.lr: expected a finite number"));
  EXPECT_THAT(error_of("optim: {lr: .nan}"), HasSubstr("optim.lr: expected a finite number"));
  EXPECT_THAT(error_of("optim: {lr: fast}"), HasSubstr("optim.lr: expected a number, given fast"));
  EXPECT_THAT(error_of("optim: {name: adagrad}"),
              HasSubstr("optim.name: expected one of adamw, adam, sgd, lion, lamb, adafactor, "
                        "muon, given adagrad"));
  EXPECT_THAT(error_of("train: {output_dir: 5}"),
              HasSubstr("expected text (write \"5\" if that is meant)"));
  EXPECT_THAT(error_of("train: [1]"), HasSubstr("train: expected a map of keys, given a list"));
  EXPECT_THAT(error_of("data: {train: a}"), HasSubstr("data.train: expected a list, given a"));
  EXPECT_THAT(error_of("model: gpt2"), HasSubstr("model: expected a map of keys, given gpt2"));
  EXPECT_THAT(error_of("just text"), HasSubstr("expected a map of keys, given just text"));
  EXPECT_THAT(error_of("optim: {betas: [0.9, x]}"),
              HasSubstr("optim.betas.1: expected a number, given x"));
}

TEST(Config, CollectsTheErrors) {
  EXPECT_THAT(
      error_of("train:\n  sed: 1\n  seed: x\noptim: {lr: y}"),
      AllOf(HasSubstr("run.yaml:2: "), HasSubstr("\nrun.yaml:3: "), HasSubstr("\nrun.yaml:4: ")));
}

TEST(Config, RefusesDamagedText) {
  EXPECT_THAT(error_of("train: {seed: 1"),
              AllOf(HasSubstr("run.yaml:1: not valid YAML"), HasSubstr("column")));
  EXPECT_THAT(error_of("a: 1\n--- \nb: 2"), HasSubstr("2 documents"));
  EXPECT_THAT(error_of("model: !!python/object:os.system {}"), HasSubstr("has no meaning"));
  EXPECT_THAT(error_of("? [a]\n: 1"), HasSubstr("a key must be plain text"));
  EXPECT_THAT(error_of("model: &a [*a]"), HasSubstr("nested too deep"));
  EXPECT_THAT(error_of("model: " + std::string(100, '[') + std::string(100, ']')),
              HasSubstr("nested too deep"));
  EXPECT_THAT(error_of("includes: x"), HasSubstr("includes: expected a list of files"));
  for (const char* text : {"train.seed", "=1", ".a=1", "a.=1", "a..b=1", "a b=1"}) {
    EXPECT_THAT(error_of("", {text}), HasSubstr("expected key.path=value")) << text;
  }
  EXPECT_THAT(error_of("", {"train.seed={"}), HasSubstr("override train.seed={"));
  EXPECT_THAT(error_of("data: {train: [{path: a}]}", {"data.train.3.path=c"}),
              HasSubstr("there is no entry 3"));
}

TEST(Config, ResolvedFileReadsBackEqual) {
  RunConfig config = parse(R"(
model: {family: gpt2, "odd key: x": "a: b # c", n: 1.0, e: 1e-5, s: "5", y: "true", z: "null", l: [1, {k: null}], o: {}}
tokenizer: "${env:CONFIG_TEST_NONE,a b}"
data: {train: [{path: "x ${train.seed} $${y}", weight: 0.1}], valid: [{path: "-"}]}
train: {train_epoch: 1.5, dist: {custom_pipeline_stage_id: [0, 1], timeout_s: 0.30000000000000004}}
optim: {lr: 0.1234567890123456789, clip_grad_norm_type: .inf, clip_grad_max_norm: null, eps: 5e-324}
)",
                           "run.yaml");
  config.train.output_dir = "quote \" back \\ tab \t line \n é ~";
  std::string text = to_yaml(config);
  EXPECT_EQ(parse(text, "again.yaml"), config) << text;
  EXPECT_EQ(to_yaml(parse(text, "again.yaml")), text);
  EXPECT_EQ(parse(to_yaml(RunConfig{}), "defaults.yaml"), RunConfig{});
}

TEST(Config, ResolvedFileIsTheGoldenOne) {
  std::string root = TRIREME_SOURCE_DIR;
  RunConfig config = load(root + "/configs/gpt2_tiny.yaml", {"train.dist.tensor_parallel_size=2"});
  EXPECT_EQ(to_yaml(resolved(config, 4)),
            base::read_file(root + "/tests/unit/gpt2_tiny_resolved.yaml"));
}

TEST(Config, EveryExampleLoads) {
  int count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(TRIREME_SOURCE_DIR) + "/configs")) {
    SCOPED_TRACE(entry.path());
    EXPECT_NO_THROW(load(entry.path().string()));
    ++count;
  }
  EXPECT_GE(count, 1);
}

TEST(Config, TheReferenceInDocsIsCurrent) {
  std::string path = std::string(TRIREME_SOURCE_DIR) + "/docs/config.md";
  EXPECT_EQ(reference(), base::read_file(path)) << "run: ninja docs";
}

}  // namespace
}  // namespace trireme::config
