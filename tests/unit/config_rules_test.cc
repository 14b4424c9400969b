// What several keys say together: layout, batch, length, stages, and what is not supported yet.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/config/load.h"

namespace trireme::config {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const base::ConfigError& e) {
    return e.what();
  }
  return "no error";
}

Train batch(std::optional<int64_t> micro, std::optional<int64_t> steps,
            std::optional<int64_t> global) {
  Train train;
  train.train_micro_batch_size = micro;
  train.num_accumulation_steps = steps;
  train.global_batch_size = global;
  return train;
}

TEST(BatchRules, AnyTwoGiveTheThird) {
  BatchPlan expected{.micro_batch_size = 2, .micro_batches = 4, .global_batch_size = 24};
  EXPECT_EQ(resolve_batch(batch(2, 4, {}), 3), expected);
  EXPECT_EQ(resolve_batch(batch(2, {}, 24), 3), expected);
  EXPECT_EQ(resolve_batch(batch({}, 4, 24), 3), expected);
  EXPECT_EQ(resolve_batch(batch(2, 4, 24), 3), expected);
}

TEST(BatchRules, OneAloneMeansNoAccumulation) {
  EXPECT_EQ(resolve_batch(batch(2, {}, {}), 3), (BatchPlan{2, 1, 6}));
  EXPECT_EQ(resolve_batch(batch({}, {}, 6), 3), (BatchPlan{2, 1, 6}));
}

TEST(BatchRules, ContradictionsShowTheArithmetic) {
  EXPECT_THAT(error_of([] { resolve_batch(batch({}, 4, {}), 1); }),
              HasSubstr("give train_micro_batch_size or"));
  EXPECT_THAT(
      error_of([] { resolve_batch(batch(2, 4, 25), 3); }),
      HasSubstr(
          "train_micro_batch_size 2 x data_parallel_size 3 x num_accumulation_steps 4 = 24, but "
          "global_batch_size is 25"));
  EXPECT_THAT(error_of([] { resolve_batch(batch(2, {}, 25), 3); }),
              AllOf(HasSubstr("no num_accumulation_steps fits"),
                    HasSubstr("25 / (train_micro_batch_size 2 x"), HasSubstr("remainder of 1"),
                    HasSubstr("global_batch_size=30")));
  EXPECT_THAT(
      error_of([] { resolve_batch(batch({}, 4, 25), 3); }),
      AllOf(HasSubstr("no train_micro_batch_size fits"), HasSubstr("num_accumulation_steps 4 x")));
  int64_t huge = int64_t{1} << 62;
  EXPECT_THAT(error_of([&] { resolve_batch(batch(huge, huge, {}), 2); }), HasSubstr("too large"));
}

TEST(Degrees, DataParallelIsWhatIsLeft) {
  Dist dist{.tensor_parallel_size = 2, .pipeline_parallel_size = 2};
  EXPECT_EQ(resolve_degrees(dist, 8), (Degrees{.dp = 2, .tp = 2, .pp = 2}));
  EXPECT_EQ(resolve_degrees(dist, 4), (Degrees{.dp = 1, .tp = 2, .pp = 2}));
  EXPECT_THAT(
      error_of([&] { resolve_degrees(dist, 6); }),
      HasSubstr(
          "6 ranks cannot be shared out: tensor_parallel_size 2 x pipeline_parallel_size 2 = 4"));
  dist.data_parallel_size = 3;
  EXPECT_EQ(resolve_degrees(dist, 12).dp, 3);
  EXPECT_THAT(error_of([&] { resolve_degrees(dist, 8); }),
              HasSubstr("data_parallel_size 3 x tensor_parallel_size 2 x pipeline_parallel_size 2 "
                        "= 12, but there are "
                        "8 ranks; start 12"));
  EXPECT_THAT(error_of([&] { resolve_degrees(dist, 1); }), HasSubstr("there is 1 rank;"));
}

TEST(RunLength, FromEachKey) {
  RunConfig config;
  config.data.seq_length = 64;
  auto length = [&](auto Train::*key, auto value) {
    config.train.train_iter = config.train.train_samples = config.train.train_tokens = std::nullopt;
    config.train.train_epoch = std::nullopt;
    config.train.*key = value;
    return resolve_length(config, 8, 100);
  };
  EXPECT_EQ(length(&Train::train_iter, 10), (RunLength{10, 80}));
  EXPECT_EQ(length(&Train::train_epoch, 2.0), (RunLength{25, 200}));
  EXPECT_EQ(length(&Train::train_epoch, 0.5), (RunLength{7, 50}));
  EXPECT_EQ(length(&Train::train_samples, 81), (RunLength{11, 81}));
  EXPECT_EQ(length(&Train::train_tokens, 6401), (RunLength{13, 101}));
  config.train.train_tokens.reset();
  EXPECT_THAT(error_of([&] { resolve_length(config, 8, 100); }),
              HasSubstr("give the run's length"));
  config.train.train_epoch = 1;
  EXPECT_THAT(error_of([&] { resolve_length(config, 8, 0); }),
              HasSubstr("1 passes over 0 samples"));
}

TEST(RunLength, DropsAShortLastStepWhenTold) {
  RunConfig config;
  config.data.last_batch = "drop";
  config.train.train_iter.reset();
  for (auto [samples, expected] : {std::pair<int64_t, RunLength>{80, {10, 80}}, {81, {10, 80}}, {87, {10, 80}}, {8, {1, 8}}}) {
    config.train.train_samples = samples;
    EXPECT_EQ(resolve_length(config, 8, 0), expected) << samples;
  }
  config.train.train_samples = 7;
  EXPECT_THAT(error_of([&] { resolve_length(config, 8, 0); }),
              HasSubstr("data.last_batch: drop leaves no step of 7 samples, which are fewer than the 8 of one"));
  config.train.batch_rampup = {.start = 4, .increment = 2, .samples = 30};  // 4, 4, 4, 6, 6, 8, then 10
  for (auto [samples, expected] : {std::pair<int64_t, RunLength>{53, {8, 52}}, {52, {8, 52}}, {33, {6, 32}}, {31, {5, 24}}, {5, {1, 4}}}) {
    config.train.train_samples = samples;
    EXPECT_EQ(resolve_length(config, 10, 0), expected) << samples;
  }
  config.data.last_batch = "pad";
  config.train.train_samples = 53;
  EXPECT_EQ(resolve_length(config, 10, 0), (RunLength{9, 53}));
}

TEST(BatchRampup, RisesEvenlyAndThenStays) {
  const BatchRampup rampup{.start = 4, .increment = 2, .samples = 30};  // rises to 6, 8, 10 in thirds
  EXPECT_EQ(batch_size_at(rampup, 10, 0), 4);
  EXPECT_EQ(batch_size_at(rampup, 10, 9), 4);
  EXPECT_EQ(batch_size_at(rampup, 10, 10), 6);
  EXPECT_EQ(batch_size_at(rampup, 10, 29), 8);
  EXPECT_EQ(batch_size_at(rampup, 10, 30), 10);
  EXPECT_EQ(batch_size_at({}, 10, 0), 10);
  EXPECT_THAT(error_of([&] { batch_size_at(rampup, 11, 0); }), HasSubstr("an increment that divides 7"));
  EXPECT_THAT(error_of([&] { batch_size_at(rampup, 2, 0); }), HasSubstr("do not lead to the 2 samples"));
  EXPECT_THAT(error_of([&] { parse("train: {batch_rampup: {start: 4}}", "f"); }),
              HasSubstr("start, increment and samples"));
}

TEST(BatchRampup, LengthsCountItsSteps) {
  RunConfig config;
  config.train.batch_rampup = {.start = 4, .increment = 2, .samples = 30};
  // Steps of 4, 4, 4, 6, 6, 8 samples consume 32; whole ones follow.
  config.train.train_iter = 8;
  EXPECT_EQ(resolve_length(config, 10, 0), (RunLength{8, 52}));
  config.train.train_iter = 2;
  EXPECT_EQ(resolve_length(config, 10, 0), (RunLength{2, 8}));
  config.train.train_iter.reset();
  for (auto [samples, steps] : {std::pair<int64_t, int64_t>{53, 9}, {52, 8}, {33, 7}, {32, 6}, {31, 6}, {5, 2}, {1, 1}}) {
    config.train.train_samples = samples;
    EXPECT_EQ(resolve_length(config, 10, 0), (RunLength{steps, samples})) << samples;
  }
}

TEST(StageLayers, CustomIdsBecomeCounts) {
  Dist dist{.pipeline_parallel_size = 2};
  EXPECT_EQ(resolve_stage_layers(dist, 4, 2), std::nullopt);
  auto with = [&](std::vector<int> ids) {
    dist.custom_pipeline_stage_id = ids;
    return resolve_stage_layers(dist, 4, 2);
  };
  EXPECT_EQ(with({0, 0, 0, 1}), (std::vector<int>{3, 1}));
  EXPECT_THAT(error_of([&] { with({0, 1}); }), HasSubstr("2 entries, but the model has 4 layers"));
  EXPECT_THAT(error_of([&] { with({0, 0, 1, 2}); }), HasSubstr("layer 3 is on stage 2"));
  EXPECT_THAT(error_of([&] {
                with({0, 1, 0, 1});
              }),
              HasSubstr("layer 2 goes back from stage 1 to 0"));
  EXPECT_THAT(error_of([&] { with({0, 0, 0, 0}); }), HasSubstr("stage 1 of 2 has no layer"));
  dist.pipeline_num_layers = 5;
  EXPECT_THAT(error_of([&] { resolve_stage_layers(dist, 4, 2); }),
              HasSubstr("but the model has 4 layers"));
}

TEST(Resolved, FillsInLayoutAndBatch) {
  RunConfig config = parse("train: {global_batch_size: 16, train_micro_batch_size: 2}", "f");
  RunConfig full = resolved(config, 4);
  EXPECT_EQ(full.train.dist.data_parallel_size, 4);
  EXPECT_EQ(full.train.num_accumulation_steps, 2);
  EXPECT_EQ(resolved(full, 4), full);
  EXPECT_THROW(resolved(full, 8), base::ConfigError);
}

TEST(Consistency, ContradictingKeysAreRefused) {
  auto refusal = [](const std::string& text) { return error_of([&] { parse(text, "f"); }); };
  EXPECT_THAT(refusal("train: {train_iter: 3, train_epoch: 1}"),
              HasSubstr("give one of train_iter"));
  EXPECT_THAT(refusal("train: {dtype: fp64, amp: {dtype: bf16}}"), HasSubstr("in fp32"));
  EXPECT_THAT(refusal("train: {amp: {dtype: bf16, loss_scale: 8}}"), HasSubstr("no loss scale"));
  EXPECT_THAT(refusal("train: {amp: {dtype: fp16, min_scale: 8, initial_scale: 4}}"),
              HasSubstr("min_scale <= initial_scale"));
  EXPECT_THAT(refusal("optim: {ema: {decay: 1}}"), HasSubstr("give less"));
  EXPECT_THAT(refusal("train: {train_epoch: 0}"), HasSubstr("more than 0 passes"));
  EXPECT_THAT(refusal("train: {dist: {schedule_file: mine.txt, schedule: zb-v}}"),
              HasSubstr("schedule_file mine.txt is the whole schedule, so schedule zb-v would"));
  EXPECT_THAT(refusal("train: {dist: {schedule_file: mine.txt, chunks: 2}}"),
              HasSubstr("chunks 2 would have no effect"));
  EXPECT_EQ(refusal("train: {dist: {schedule_file: mine.txt}}"), "no error");
  EXPECT_THAT(refusal("train: {dist: {auto_memory_mb: 4}}"), HasSubstr("the schedule is 1f1b"));
  EXPECT_THAT(refusal("train: {dist: {schedule: auto, auto_memory_mb: 0}}"),
              HasSubstr("null: no limit"));
  EXPECT_THAT(refusal("train: {dist: {balance: cost, custom_pipeline_stage_id: [0, 1]}}"),
              HasSubstr("balance cost would have no effect"));
  EXPECT_THAT(refusal("train: {scheduler: {warmup_iter: 3, warmup_ratio: 0.1}}"),
              HasSubstr("both set the warm-up"));
  EXPECT_THAT(refusal("train: {scheduler: {warmup_ratio: 1}}"), HasSubstr("less than 1"));
  EXPECT_THAT(refusal("train: {scheduler: {name: cyclic}}"), HasSubstr("warmup_polynomial"));
  EXPECT_THAT(refusal("train: {scheduler: {name: warmup_step}}"), HasSubstr("step_size"));
  EXPECT_THAT(refusal("train: {scheduler: {name: warmup_exponential}}"), HasSubstr("gamma"));
  EXPECT_THAT(refusal("train: {scheduler: {name: warmup_multistep}}"), HasSubstr("milestones"));
  EXPECT_THAT(refusal("train: {scheduler: {name: warmup_multistep, milestones: [5, 5]}}"),
              HasSubstr("ascending steps, given [5, 5]"));
  EXPECT_THAT(refusal("train: {scheduler: {name: inverse_sqrt}}"), HasSubstr("needs a warm-up"));
  EXPECT_THAT(refusal("train: {scheduler: {name: one_cycle, warmup_method: constant}}"),
              HasSubstr("along a cosine"));
  EXPECT_THAT(refusal("train: {scheduler: {name: wsd, decay_ratio: 1.5}}"),
              HasSubstr("decay_ratio"));
  EXPECT_THAT(refusal("train: {checkpointer: {keep_best: eval_loss}}"), HasSubstr("evaluates nothing"));
  const std::string valid = "data: {valid: [{path: v}]}\n";
  EXPECT_THAT(refusal(valid + "train: {checkpointer: {keep_best: bleu}}"), HasSubstr("give one of eval_loss"));
  EXPECT_THAT(refusal(valid + "train: {evaluation: {metrics: [f1]}, checkpointer: {keep_best: f1}}"),
              HasSubstr("eval_loss, eval_f1"));
  EXPECT_THAT(refusal("train: {evaluation: {ema: true}}"), HasSubstr("optim.ema.decay"));
  EXPECT_THAT(refusal("optim: {name: adagrad}"), HasSubstr("adafactor"));
  EXPECT_THAT(refusal("optim: {clip_grad_value: 0}"), HasSubstr("null switches clipping off"));
  EXPECT_THAT(refusal("optim: {groups: [{freeze: true}]}"), HasSubstr("without a pattern"));
  EXPECT_THAT(refusal("optim: {groups: [{pattern: a, freeze: true, lr_scale: 2}]}"),
              HasSubstr("'a' is frozen"));
  EXPECT_THAT(refusal("optim: {groups: [{pattern: a, rate: 2}]}"), HasSubstr("rate"));
  EXPECT_THAT(refusal("optim: {betas: [0.9]}"), HasSubstr("expected two numbers"));
  EXPECT_THAT(refusal("optim: {betas: [0.9, 1]}"), HasSubstr("below 1, given [0.9, 1]"));
  EXPECT_THAT(refusal("optim: {clip_grad_max_norm: 0}"), HasSubstr("null switches clipping off"));
  EXPECT_THAT(refusal("data: {train: [{path: a, weight: 0}]}"), HasSubstr("add up to 0"));
  EXPECT_THAT(refusal("data: {train: [{weight: 1}]}"), HasSubstr("without a path"));
}

TEST(EvalSamples, AreAFunctionOfTheKeysAndNotOfTheLayout) {
  auto samples = [](const std::string& keys, int ranks) {
    RunConfig config = resolved(parse("train: {" + keys + "}", "run.yaml"), ranks);
    EXPECT_FALSE(config.train.evaluation.eval_iter);
    // The resolved file repeats the run on any layout.
    EXPECT_EQ(resolve_eval_samples(config.train), config.train.evaluation.eval_samples);
    return config.train.evaluation.eval_samples;
  };
  for (int ranks : {1, 2, 4}) {
    EXPECT_EQ(samples("global_batch_size: 8, evaluation: {eval_iter: 3}", ranks), 24);
    EXPECT_EQ(
        samples("train_micro_batch_size: 2, num_accumulation_steps: 4, evaluation: {eval_iter: 3}",
                ranks),
        24);
    EXPECT_EQ(samples("train_micro_batch_size: 2, evaluation: {eval_samples: 5}", ranks), 5);
    EXPECT_EQ(samples("train_micro_batch_size: 2", ranks), std::nullopt);
  }
  EXPECT_THROW(parse("train: {evaluation: {eval_iter: 3, eval_samples: 5}}", "run.yaml"),
               base::ConfigError);
}

}  // namespace
}  // namespace trireme::config
