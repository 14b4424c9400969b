// One fused kernel, forward and backward, driven by bench_kernels.py: each line of standard input is a number of turns;
// the answer is the seconds of the fastest. At the end of input: the peak of tensors' bytes beyond what it was given.
//
//   kernel_step THREADS head_loss ROWS VOCABULARY FEATURES
//   kernel_step THREADS attention SEQ DROPOUT        12 heads of 64 features, causal
#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <string>

#include "trireme/dist/world.h"
#include "trireme/kernels/allocator.h"
#include "trireme/nn/attention.h"
#include "trireme/nn/loss.h"

namespace {

using namespace trireme;

std::function<void()> head_loss(int64_t rows, int64_t vocab, int64_t features) {
  auto table = std::make_shared<nn::Param>();
  table->spec = {.name = "table", .shape = {vocab, features}};
  table->data = at::randn({vocab, features}) * 0.02;  // as models are drawn
  table->grad = at::zeros({vocab, features});
  at::Tensor x = at::randn({rows, features}).requires_grad_(true), labels = at::randint(vocab, {rows}, at::kLong);
  return [=] {
    const nn::Batch batch;
    const nn::Context context{.batch = batch,
                              .anchor = at::zeros({}).requires_grad_(true),
                              .loss_request = nn::LossRequest{.factor = 1.0 / static_cast<double>(rows)}};
    table->grad_begun = false;
    x.mutable_grad().reset();
    (nn::head_cross_entropy_sum(x, {.table = table.get()}, labels, {}, context) / static_cast<double>(rows)).backward();
  };
}

std::function<void()> attention(int64_t seq, double dropout) {
  auto batch = std::make_shared<nn::Batch>();
  batch->samples = at::zeros({1}, at::kLong);
  std::vector<at::Tensor> in;
  for (int i = 0; i < 3; ++i) in.push_back(at::randn({1, seq, 12, 64}).transpose(1, 2).detach().requires_grad_(true));
  at::Tensor gradient = at::randn({1, seq, 12, 64}).transpose(1, 2);
  return [=] {
    const nn::Context context{.batch = *batch};
    for (at::Tensor t : in) t.mutable_grad().reset();
    nn::attention(in[0], in[1], in[2], {.scale = 0.125, .causal = true, .dropout = dropout}, {}, context)
        .backward(gradient);
  };
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 2 ? argv[2] : "";
  if (!(what == "head_loss" && argc == 6) && !(what == "attention" && argc == 5)) {
    std::fprintf(stderr, "usage: kernel_step THREADS head_loss ROWS VOCABULARY FEATURES | attention SEQ DROPOUT\n");
    return 2;
  }
  try {
    kernels::install_caching_allocator();
    dist::set_rank_threads(std::stoi(argv[1]));
    const std::function<void()> turn =
        what == "head_loss" ? head_loss(std::stoll(argv[3]), std::stoll(argv[4]), std::stoll(argv[5]))
                            : attention(std::stoll(argv[3]), std::stod(argv[4]));
    const int64_t given = kernels::memory_counters().live;
    kernels::reset_peak();
    for (int64_t turns; std::cin >> turns;) {
      double best = 1e9;
      for (int64_t i = 0; i < turns; ++i) {
        const auto begin = std::chrono::steady_clock::now();
        turn();
        best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
      }
      std::printf("%.6f\n", best);
      std::fflush(stdout);
    }
    std::printf("%lld\n", static_cast<long long>(kernels::memory_counters().peak - given));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kernel_step: %s\n", error.what());
    return 1;
  }
}
