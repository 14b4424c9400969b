#include "trireme/generate/beams.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"

namespace trireme::generate {

void Beams::check() const {
  if (count < 1)
    throw base::ConfigError(fmt::format("--num-beams is {}, expected at least 1", count));
  if (!std::isfinite(length_penalty))
    throw base::ConfigError(
        fmt::format("--length-penalty is {}, expected a finite number", length_penalty));
}

BeamSearch::BeamSearch(std::vector<int64_t> prompt, const Beams& beams, int64_t max_new_tokens,
                       std::optional<int64_t> end_token)
    : beams_(beams),
      prompt_size_(std::ssize(prompt)),
      max_new_tokens_(max_new_tokens),
      end_token_(end_token),
      running_{std::move(prompt)},
      log_probs_{0.0} {}

double BeamSearch::score(double log_prob, int64_t new_tokens) const {
  return log_prob / std::pow(static_cast<double>(new_tokens), beams_.length_penalty);
}

bool BeamSearch::full() const {
  return std::ssize(finished_) == beams_.count;
}

void BeamSearch::finish(double log_prob, std::vector<int64_t> ids) {
  Finished entry{score(log_prob, std::ssize(ids) - prompt_size_), std::move(ids)};
  auto place =
      std::upper_bound(finished_.begin(), finished_.end(), entry,
                       [](const Finished& a, const Finished& b) { return a.score > b.score; });
  finished_.insert(place, std::move(entry));
  if (std::ssize(finished_) > beams_.count) finished_.pop_back();
}

void BeamSearch::advance(const at::Tensor& log_probs) {
  const int64_t rows = std::ssize(running_), vocab = log_probs.size(1);
  base::check(!done_ && log_probs.size(0) == rows, "a step of {} sequences for {}",
              log_probs.size(0), rows);
  at::Tensor sums = log_probs.to(at::kDouble) + at::tensor(log_probs_, at::kDouble).unsqueeze(1);
  // Twice as many as beams: enough go on even when each beam's likeliest token ends it.
  auto [values, places] = sums.flatten().topk(std::min(2 * beams_.count, rows * vocab));
  const bool last = std::ssize(running_.front()) + 1 - prompt_size_ == max_new_tokens_;
  std::vector<std::vector<int64_t>> next;
  std::vector<double> next_log_probs;
  parents_.clear();
  for (int64_t i = 0; i < values.numel(); ++i) {
    double log_prob = values[i].item<double>();
    int64_t place = places[i].item<int64_t>(), parent = place / vocab, token = place % vocab;
    if (std::isinf(log_prob)) continue;  // banned
    std::vector<int64_t> ids = running_[parent];
    ids.push_back(token);
    if (last || token == end_token_) {
      if (i < beams_.count) finish(log_prob, std::move(ids));
    } else if (std::ssize(next) < beams_.count) {
      next.push_back(std::move(ids));
      next_log_probs.push_back(log_prob);
      parents_.push_back(parent);
    }
  }
  base::check(last || !next.empty() || !finished_.empty(),
              "every continuation of a sequence is banned");
  running_ = std::move(next);
  log_probs_ = std::move(next_log_probs);
  done_ = running_.empty() || (full() && beams_.early_stopping == EarlyStopping::yes);
  if (done_ || !full()) return;
  bool longest = beams_.early_stopping == EarlyStopping::never && beams_.length_penalty > 0;
  int64_t length = longest ? max_new_tokens_ : std::ssize(running_.front()) - prompt_size_;
  done_ = score(log_probs_.front(), length) <= finished_.back().score;
}

std::vector<int64_t> BeamSearch::best() const {
  base::check(!finished_.empty(), "no finished sequence");
  const std::vector<int64_t>& ids = finished_.front().ids;
  return {ids.begin() + prompt_size_, ids.end()};
}

}  // namespace trireme::generate
