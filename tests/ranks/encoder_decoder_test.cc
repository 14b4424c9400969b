// Chains beyond decoders: the encoder's output travels on to every decoder stage, a table is tied over three places,
// a bias over all stages.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/ranks/pipeline_support.h"
#include "trireme/layout/stage_manager.h"

namespace trireme::pipeline::testing {
namespace {

using schedule::generate;

Outcome one_rank(const EncoderDecoderOptions& options, int micro_batches) {
  return run({.schedule = generate("gpipe", {.ranks = 1, .micro_batches = micro_batches}), .pair = options},
             {make_pairs(micro_batches, 2)});
}

TEST(EncoderDecoder, EveryStageCountEqualsOneRank) {
  for (const EncoderDecoderOptions& options : {EncoderDecoderOptions{4, 4}, {2, 5}, {3, 1}}) {
    const int blocks = options.encoder + options.decoder;
    for (int m : {1, 3}) {
      const Outcome one = one_rank(options, m);
      for (int p : {2, 3, 4})
        for (int every : {0, 1}) {
          SCOPED_TRACE(fmt::format("{} + {} layers, {} stages, {} micro-batches, recompute {}", options.encoder,
                                   options.decoder, p, m, every));
          const auto schedule = generate("1f1b", {.ranks = p, .micro_batches = m});
          // By halves, and by count alone: a stage may hold the turn in its middle.
          for (const std::vector<int>& layers :
               {layout::distribute_encoder_decoder(options.encoder, options.decoder, p).layers_per_part,
                layout::distribute_layers(blocks, p)}) {
            const Outcome outcome = run({.schedule = schedule, .pair = options, .blocks_per_chunk = layers,
                                         .stage = {.recompute_every = every}},
                                        {make_pairs(m, 2)});
            for (double loss : outcome.losses) ASSERT_NEAR(loss, one.losses[0], 1e-12);
            ASSERT_LT(error(outcome.gradients, one.gradients), 1e-10);
          }
        }
    }
  }
}

TEST(EncoderDecoder, EveryScheduleAndDataRanksEqualOneRank) {
  const EncoderDecoderOptions options{.encoder = 6, .decoder = 6};
  const auto batches = make_pairs(6, 2);
  const Outcome one = one_rank(options, 6);
  for (const std::string_view name : schedule::names()) {
    if (name == "forward") continue;
    for (int p : {2, 3})
      for (int dp : {1, 2}) {
        SCOPED_TRACE(fmt::format("{}, {} stages, {} data ranks", name, p, dp));
        const auto schedule = generate(name, {.ranks = p, .micro_batches = 6 / dp, .search = 1000});
        std::vector<std::vector<nn::Batch>> dealt(dp);
        for (size_t m = 0; m < batches.size(); ++m) dealt[m % dp].push_back(batches[m]);
        const Outcome outcome =
            run({.schedule = schedule, .dp = dp, .pair = options,
                 .blocks_per_chunk = layout::distribute_encoder_decoder(6, 6, schedule.chunks).layers_per_part},
                dealt);
        for (double loss : outcome.losses) ASSERT_NEAR(loss, one.losses[0], 1e-12);
        ASSERT_LT(error(outcome.gradients, one.gradients), 1e-10);
      }
  }
}

TEST(EncoderDecoder, TheTiedTableAndTheSharedBiasCountEachUse) {
  const Outcome one = one_rank({.encoder = 2, .decoder = 2, .dropout = 0}, 2);
  EXPECT_EQ(one.gradients.count("shared.weight"), 1u);
  EXPECT_GT(one.gradients.at("shared.weight").abs().sum().item<double>(), 0);
  EXPECT_GT(one.gradients.at("bias.weight").abs().sum().item<double>(), 0);
  // By numbers: a step along the gradient changes the loss as the gradient says.
  dist::DeviceMesh mesh;
  auto model = nn::build_model(encoder_decoder({.encoder = 2, .decoder = 2, .dropout = 0}), mesh,
                               {.dtype = base::DType::f64}, {4}, {0});
  model->store.materialize(3, true);
  Executor executor(generate("forward", {.ranks = 1, .micro_batches = 2}), *model, mesh);
  const auto batches = make_pairs(2, 2);
  auto loss = [&] { return executor.run(batches, {.seed = 5, .step = 2}, nn::Mode::train).loss(); };
  for (const char* name : {"shared.weight", "bias.weight"}) {
    nn::Param* param = model->store.find(name);
    EXPECT_EQ(param->uses, name == std::string("bias.weight") ? 4 : 3);
    const at::Tensor gradient = one.gradients.at(name), kept = param->data.clone();
    const double h = 1e-6, square = gradient.square().sum().item<double>();
    param->data.add_(gradient, h);
    const double up = loss();
    param->data.copy_(kept).sub_(gradient, h);
    const double down = loss();
    param->data.copy_(kept);
    EXPECT_NEAR((up - down) / (2 * h) / square, 1, 1e-6) << name;
  }
}

}  // namespace
}  // namespace trireme::pipeline::testing
