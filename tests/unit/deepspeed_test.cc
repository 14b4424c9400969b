#include "trireme/config/deepspeed.h"

#include <gmock/gmock.h>

#include "trireme/base/error.h"
#include "trireme/config/load.h"
#include "trireme/optim/lr.h"

namespace trireme::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

RunConfig run(std::string_view json) {
  return parse("model: {family: gpt2}", "run.yaml", parse_deepspeed(json, "ds.json").settings);
}

std::string refusal(std::string_view json) {
  try {
    run(json);
  } catch (const base::Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(DeepSpeed, TheSubsetBecomesSettings) {
  const RunConfig config = run(R"({
    "train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_clipping": 0.5,
    "zero_optimization": {"stage": 1, "overlap_comm": true}, "steps_per_print": 7,
    "bf16": {"enabled": true},
    "optimizer": {"type": "Adam", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-6, "weight_decay": 0.1}}})");
  EXPECT_EQ(config.train.global_batch_size, 64);
  EXPECT_EQ(config.train.train_micro_batch_size, 4);
  EXPECT_EQ(config.train.zero_optimization.effective_stage(), 1);
  EXPECT_EQ(config.train.log_period, 7);
  EXPECT_TRUE(config.train.amp.enabled);
  EXPECT_EQ(config.train.amp.dtype, "bf16");
  EXPECT_EQ(config.optim.name, "adamw");  // its Adam decouples the decay by default
  EXPECT_EQ(config.optim.lr, 3e-4);
  EXPECT_THAT(config.optim.betas, ElementsAre(0.9, 0.95));
  EXPECT_EQ(config.optim.clip_grad_max_norm, 0.5);
}

TEST(DeepSpeed, TheLossScaleOfFp16) {
  const config::Amp amp = run(R"({"train_batch_size": 4, "fp16": {"enabled": true, "loss_scale": 0,
      "initial_scale_power": 12, "loss_scale_window": 500, "hysteresis": 3, "min_loss_scale": 4,
      "consecutive_hysteresis": false}})").train.amp;
  EXPECT_EQ(amp, (config::Amp{.enabled = true, .dtype = "fp16", .initial_scale = 4096,
                              .growth_interval = 500, .hysteresis = 3, .min_scale = 4}));
  EXPECT_EQ(run(R"({"fp16": {"enabled": true, "loss_scale": 128}})").train.amp.loss_scale, 128);
  EXPECT_FALSE(run(R"({"fp16": {"enabled": false, "loss_scale": 128}})").train.amp.enabled);
  EXPECT_THAT(refusal(R"({"fp16": {"enabled": true, "consecutive_hysteresis": true}})"),
              HasSubstr("consecutive_hysteresis"));
}

TEST(DeepSpeed, AutoLeavesAKeyToTheRun) {
  const DeepSpeed given = parse_deepspeed(
      R"({"train_batch_size": "auto", "fp16": {"enabled": "auto"}, "gradient_clipping": "auto",
          "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}})",
      "ds.json");
  EXPECT_THAT(given.settings, ElementsAre("optim.name=\"adamw\""));
  EXPECT_THAT(given.without_counterpart, IsEmpty());
}

TEST(DeepSpeed, TuningKeysAreListed) {
  const DeepSpeed given = parse_deepspeed(
      R"({"zero_optimization": {"stage": 0, "allgather_bucket_size": 5e8, "offload_optimizer": {"device": "none"}},
          "activation_checkpointing": {"cpu_checkpointing": false}, "wall_clock_breakdown": false})",
      "ds.json");
  EXPECT_THAT(given.without_counterpart,
              UnorderedElementsAre("zero_optimization.allgather_bucket_size",
                                   "zero_optimization.offload_optimizer.device",
                                   "activation_checkpointing.cpu_checkpointing", "wall_clock_breakdown"));
}

TEST(DeepSpeed, NoClippingIsZero) {
  EXPECT_EQ(run(R"({"gradient_clipping": 0.0})").optim.clip_grad_max_norm, std::nullopt);
}

TEST(DeepSpeed, Adam) {
  EXPECT_EQ(run(R"({"optimizer": {"type": "Adam", "params": {"adam_w_mode": false}}})").optim.name, "adam");
}

// The rates of DeepSpeed's lr_schedules.py with its index of the step.
TEST(DeepSpeed, SchedulersHaveItsRates) {
  const auto rate = [](const RunConfig& config, int64_t step, int64_t total) {
    return optim::learning_rate(config.train.scheduler, config.optim.lr, step, total);
  };
  const RunConfig constant = run(R"({"scheduler": {"type": "WarmupLR", "params":
      {"warmup_min_lr": 0.1, "warmup_max_lr": 0.5, "warmup_num_steps": 4, "warmup_type": "linear"}}})");
  EXPECT_EQ(constant.optim.lr, 0.5);
  EXPECT_DOUBLE_EQ(rate(constant, 0, 9), 0.1);
  EXPECT_DOUBLE_EQ(rate(constant, 2, 9), 0.3);
  EXPECT_DOUBLE_EQ(rate(constant, 8, 9), 0.5);

  const RunConfig linear = run(R"({"scheduler": {"type": "WarmupDecayLR", "params":
      {"warmup_max_lr": 1.0, "warmup_num_steps": 3, "total_num_steps": 10, "warmup_type": "linear"}}})");
  EXPECT_EQ(linear.train.train_iter, 10);
  for (int64_t step = 3; step < 10; ++step)
    EXPECT_DOUBLE_EQ(rate(linear, step, 10), (10.0 - static_cast<double>(step)) / 7) << step;

  const RunConfig cosine = run(R"({"optimizer": {"type": "AdamW", "params": {"lr": 2.0}},
      "scheduler": {"type": "WarmupCosineLR", "params":
      {"cos_min_ratio": 0.1, "warmup_num_steps": 2, "total_num_steps": 10, "warmup_type": "linear"}}})");
  EXPECT_DOUBLE_EQ(rate(cosine, 1, 10), 1.0);
  EXPECT_DOUBLE_EQ(rate(cosine, 6, 10), 2.0 * (0.1 + 0.9 * 0.5));
}

TEST(DeepSpeed, RefusalsNameFileAndKey) {
  EXPECT_THAT(refusal(R"({"train_batch_sise": 4})"),
              HasSubstr("ds.json: train_batch_sise: unknown key; did you mean train_batch_size?"));
  EXPECT_THAT(refusal(R"({"zero_optimization": {"offload_param": {"device": "cpu"}}})"),
              HasSubstr("zero_optimization.offload_param"));
  EXPECT_THAT(refusal(R"({"compression_training": {"weight_quantization": {}}})"),
              HasSubstr("compression_training"));
  EXPECT_THAT(refusal(R"({"optimizer": {"type": "OneBitAdam"}})"), HasSubstr("OneBitAdam is not available"));
  EXPECT_THAT(refusal(R"({"scheduler": {"type": "OneCycle"}})"), HasSubstr("OneCycle is not available"));
  EXPECT_THAT(refusal(R"({"scheduler": {"type": "WarmupLR"}})"), HasSubstr("write \"linear\""));
  EXPECT_THAT(refusal(R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}})"), HasSubstr("both on"));
  EXPECT_THAT(refusal(R"({"fp16": {"enabled": 1}})"), HasSubstr("expected true or false"));
  EXPECT_THAT(refusal(R"({"optimizer": {"type": "Adam", "params": {"lr": 1e-3}}, "scheduler": {"type": "WarmupLR",
      "params": {"warmup_type": "linear", "warmup_max_lr": 1e-2}}})"), HasSubstr("contradicts"));
  EXPECT_THAT(refusal("[]"), HasSubstr("ds.json: expected a JSON object"));
  EXPECT_THAT(refusal("{"), HasSubstr("ds.json:1"));
  EXPECT_THAT(refusal(R"({"train_batch_size": "many"})"), HasSubstr("train.global_batch_size"));
}

}  // namespace
}  // namespace trireme::config
