// Sampling on the host, and generation that gives the same tokens on every layout.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>

#include "trireme/base/error.h"
#include "trireme/generate/generator.h"
#include "trireme/train/assembly.h"

namespace trireme::generate {
namespace {

std::map<int64_t, int> draw(const at::Tensor& logits, Sampling sampling, int times) {
  std::map<int64_t, int> counts;
  for (int i = 0; i < times; ++i) {
    sampling.seed = i;
    ++counts[next_token(logits, std::vector<int64_t>{1, 2}, sampling, 0)];
  }
  return counts;
}

TEST(Sampling, GreedyTakesTheFirstOfTheLikeliest) {
  at::Tensor logits = at::tensor({0.0, 3.0, 3.0, -1.0});
  EXPECT_EQ(next_token(logits, std::vector<int64_t>{0}, {.greedy = true}, 0), 1);
}

TEST(Sampling, DrawsFollowTheDistribution) {
  at::Tensor logits = at::tensor({0.1, 0.2, 0.3, 0.4}, at::kDouble).log();
  auto counts = draw(logits, {}, 20000);
  for (int64_t id = 0; id < 4; ++id) EXPECT_NEAR(counts[id] / 20000.0, 0.1 * (id + 1), 0.015);
  counts = draw(logits, {.temperature = 0.5}, 20000);  // shares square
  EXPECT_NEAR(counts[3] / 20000.0, 16.0 / 30, 0.015);
}

TEST(Sampling, TopKAndTopPCutTheTail) {
  at::Tensor logits = at::tensor({0.1, 0.2, 0.3, 0.4}, at::kDouble).log();
  auto counts = draw(logits, {.top_k = 2}, 5000);
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_NEAR(counts[3] / 5000.0, 4.0 / 7, 0.03);
  EXPECT_EQ(draw(logits, {.top_p = 0.69}, 5000).size(), 2u);
  EXPECT_EQ(draw(logits, {.top_p = 0.75}, 5000).size(), 3u);
  EXPECT_EQ(draw(logits, {.top_p = 0.01}, 100).size(), 1u);
}

TEST(Sampling, NgramsAreNotRepeated) {
  EXPECT_EQ(banned_by_ngrams(std::vector<int64_t>{1, 2, 3, 1, 2}, 3), (std::vector<int64_t>{3}));
  EXPECT_EQ(banned_by_ngrams(std::vector<int64_t>{5, 6}, 1), (std::vector<int64_t>{5, 6}));
  EXPECT_TRUE(banned_by_ngrams(std::vector<int64_t>{1, 2}, 3).empty());
  at::Tensor logits = at::tensor({0.0, 1.0, 2.0, 9.0});
  EXPECT_EQ(next_token(logits, std::vector<int64_t>{1, 2, 3, 1, 2}, {.greedy = true, .no_repeat_ngram_size = 3}, 0), 2);
}

TEST(Sampling, RefusesValuesOutOfRange) {
  EXPECT_THROW(Sampling{.temperature = 0}.check(), base::ConfigError);
  EXPECT_THROW(Sampling{.top_p = 0}.check(), base::ConfigError);
  EXPECT_THROW(Sampling{.top_k = -1}.check(), base::ConfigError);
}

const base::Json kModel = {{"family", "gpt2"}, {"n_layer", 4}, {"n_embd", 32}, {"n_head", 4}, {"n_positions", 32},
                           {"vocab_size", 61}, {"initializer_range", 0.3}};

std::vector<Continuation> continue_on(int tp, int pp, const Request& request, int dp = 1, int zero = 0) {
  std::vector<Continuation> out;
  layout::Mesh mesh({.pp = pp, .dp = dp, .tp = tp});
  dist::run_ranks(mesh.size(), [&](dist::World& world) {
    auto run = train::assemble(kModel, train::forward_placement(mesh, base::DType::f64, 1), 1, world);
    run->model->options.seed = 4;
    train::make_parameters(*run, false, nullptr, zero);
    auto result = generate(*run->model, run->mesh, request, run->parameters.get());
    for (nn::Param* param : run->model->store.params()) EXPECT_EQ(param->data.defined(), zero < 3);
    if (world.rank() == world.size() - 1) out = result;
  });
  return out;
}

TEST(Generate, EveryLayoutGivesTheSameTokens) {
  for (bool greedy : {true, false}) {
    Request request{.prompts = {{1, 2, 3}, {7}, {9, 8, 60}, {5, 5, 5, 5, 5}}, .max_new_tokens = 12,
                    .sampling = {.greedy = greedy, .seed = 3}};
    auto alone = continue_on(1, 1, request);
    for (auto [tp, pp] : {std::pair{2, 1}, {1, 2}, {2, 2}, {4, 1}, {1, 4}}) {
      auto other = continue_on(tp, pp, request);
      for (size_t p = 0; p < alone.size(); ++p) {
        EXPECT_EQ(other[p].new_ids, alone[p].new_ids) << "tp " << tp << " pp " << pp;
        EXPECT_EQ(other[p].new_ids.size(), 12u);
      }
    }
    // Data ranks that share the parameters continue the same prompts.
    for (auto [tp, pp] : {std::pair{1, 1}, {2, 2}}) {
      auto other = continue_on(tp, pp, request, 2, 3);
      for (size_t p = 0; p < alone.size(); ++p) EXPECT_EQ(other[p].new_ids, alone[p].new_ids) << "ZeRO 3";
    }
    // The cache changes nothing: each token is what the whole text without it gives.
    Request again{.prompts = {{1, 2, 3}}, .max_new_tokens = 1, .sampling = {.greedy = true}};
    if (!greedy) continue;
    for (int64_t id : alone[0].new_ids) {
      EXPECT_EQ(continue_on(1, 1, again)[0].new_ids[0], id);
      again.prompts[0].push_back(id);
    }
  }
}

// With room for every sequence the search is exhaustive.
TEST(Beams, FindTheBestSequenceWhereNoneIsDropped) {
  constexpr int64_t kVocab = 4, kLength = 3, kEnd = 3;
  auto log_probs = [](const std::vector<int64_t>& ids) {
    at::Tensor logits = at::zeros({kVocab}, at::kDouble);
    for (int64_t v = 0; v < kVocab; ++v) {
      double place = static_cast<double>(v + 1);
      for (int64_t id : ids) place = place * 7.3 + static_cast<double>(id);
      logits[v] = 2 * std::sin(place);
    }
    return logits.log_softmax(0);
  };
  for (double penalty : {0.0, 1.0, 2.5}) {
    double best = -1e9;
    std::vector<int64_t> want;
    std::function<void(std::vector<int64_t>, double)> visit = [&](std::vector<int64_t> ids, double sum) {
      auto length = std::ssize(ids) - 1;
      if (length == kLength || ids.back() == kEnd) {
        if (double score = sum / std::pow(length, penalty); score > best) best = score, want.assign(ids.begin() + 1, ids.end());
        return;
      }
      at::Tensor next = log_probs(ids);
      for (int64_t v = 0; v < kVocab; ++v) {
        ids.push_back(v);
        visit(ids, sum + next[v].item<double>());
        ids.pop_back();
      }
    };
    visit({0}, 0);
    BeamSearch search({0}, {.count = 64, .length_penalty = penalty}, kLength, kEnd);
    while (!search.done()) {
      std::vector<at::Tensor> rows;
      for (const auto& ids : search.running()) rows.push_back(log_probs(ids));
      search.advance(at::stack(rows));
    }
    EXPECT_EQ(search.best(), want) << penalty;
  }
  EXPECT_THROW(Beams{.count = 0}.check(), base::ConfigError);
  EXPECT_THROW(Beams{.length_penalty = NAN}.check(), base::ConfigError);
}

TEST(Beams, EveryLayoutFindsTheSameTokens) {
  Request request{.prompts = {{1, 2, 3}, {9, 8, 60}}, .max_new_tokens = 10, .end_token = 5, .beams = {.count = 3}};
  auto alone = continue_on(1, 1, request);
  for (auto [tp, pp] : {std::pair{2, 1}, {2, 2}, {1, 4}}) {
    auto other = continue_on(tp, pp, request);
    for (size_t p = 0; p < alone.size(); ++p) {
      EXPECT_EQ(other[p].new_ids, alone[p].new_ids) << "tp " << tp << " pp " << pp;
      EXPECT_EQ(other[p].finish_reason, alone[p].finish_reason);
    }
  }
  request.sampling.temperature = 0.5;
  EXPECT_THROW(continue_on(1, 1, request), base::ConfigError);
}

TEST(Generate, StopsAtTheEndToken) {
  Request request{.prompts = {{1, 2, 3}}, .max_new_tokens = 12, .sampling = {.greedy = true}};
  int64_t third = continue_on(1, 1, request)[0].new_ids[2];
  request.end_token = third;
  Continuation stopped = continue_on(1, 2, request)[0];
  EXPECT_EQ(stopped.finish_reason, "stop");
  EXPECT_EQ(stopped.new_ids.back(), third);
  EXPECT_LE(stopped.new_ids.size(), 3u);
}

TEST(Generate, RefusesBadPrompts) {
  EXPECT_THROW(continue_on(1, 1, {.prompts = {{}}}), base::ConfigError);
  EXPECT_THROW(continue_on(1, 1, {.prompts = {{61}}}), base::ConfigError);
  EXPECT_THROW(continue_on(1, 1, {.prompts = {{1, 2}}, .max_new_tokens = 32}), base::ConfigError);
}

}  // namespace
}  // namespace trireme::generate
