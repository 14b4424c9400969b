#include "trireme/generate/sampling.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/base/philox.h"

namespace trireme::generate {

void Sampling::check() const {
  auto refuse = [](const char* flag, double given, const char* expected) {
    throw base::ConfigError(fmt::format("--{} is {}, expected {}", flag, given, expected));
  };
  if (!(temperature > 0) || std::isinf(temperature)) refuse("temperature", temperature, "a number above 0");
  if (top_k < 0) refuse("top-k", static_cast<double>(top_k), "0 (all) or more");
  if (!(top_p > 0 && top_p <= 1)) refuse("top-p", top_p, "a number in (0, 1]");
  if (no_repeat_ngram_size < 0)
    refuse("no-repeat-ngram-size", static_cast<double>(no_repeat_ngram_size), "0 (off) or more");
}

std::vector<int64_t> banned_by_ngrams(std::span<const int64_t> ids, int64_t n) {
  std::vector<int64_t> banned;
  auto size = static_cast<int64_t>(ids.size());
  if (n <= 0 || size < n) return banned;
  auto tail = ids.last(n - 1);
  for (int64_t i = 0; i + n <= size; ++i)
    if (std::equal(tail.begin(), tail.end(), ids.begin() + i)) banned.push_back(ids[i + n - 1]);
  return banned;
}

int64_t next_token(const at::Tensor& logits, std::span<const int64_t> ids, const Sampling& sampling, int64_t prompt) {
  at::Tensor values = logits.to(at::kDouble).contiguous().clone();
  double* score = values.data_ptr<double>();
  int64_t vocab = values.numel();
  for (int64_t id : banned_by_ngrams(ids, sampling.no_repeat_ngram_size))
    score[id] = -std::numeric_limits<double>::infinity();
  if (sampling.greedy) return std::max_element(score, score + vocab) - score;

  std::vector<int64_t> order(vocab);
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return score[a] > score[b]; });
  if (sampling.top_k > 0 && sampling.top_k < vocab) order.resize(sampling.top_k);
  std::vector<double> weight;
  for (int64_t id : order) weight.push_back(std::exp((score[id] - score[order[0]]) / sampling.temperature));
  double total = std::accumulate(weight.begin(), weight.end(), 0.0);
  // The nucleus is the shortest head of the order that holds top_p of the mass.
  double kept = 0;
  size_t nucleus = 0;
  while (nucleus < weight.size() && (nucleus == 0 || kept < sampling.top_p * total)) kept += weight[nucleus++];
  uint64_t key = base::stream_key(sampling.seed, "sample", static_cast<uint64_t>(prompt));
  double drawn = kept * base::uniform(base::philox(key, {static_cast<uint32_t>(ids.size()), 0, 0, 0})[0]);
  for (size_t i = 0; i < nucleus; ++i)
    if ((drawn -= weight[i]) < 0) return order[i];
  return order[nucleus - 1];
}

}  // namespace trireme::generate
