// What a training step of GPT-2 124M in fp32 cannot do without, on one rank, driven by bench_train_step.py: each line of
// standard input is what to do, the answer is its seconds.
//
//   step_bound THREADS ROWS SEQ
//
// optimizer: one step of AdamW, norm of the gradients and clipping included. memory: as many bytes as the update must move
// (a parameter's four arrays read, three of them written) at the rate at which this machine adds two arrays into a third
// one. products, products bf16: the matrix products of a forward and a backward pass, nothing else.
#include <ATen/ATen.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>

#include "trireme/kernels/allocator.h"
#include "trireme/optim/sharded_optimizer.h"
#include "trireme/schedule/generators.h"
#include "trireme/train/assembly.h"

namespace {

using namespace trireme;

constexpr int64_t kNumbers = int64_t{1} << 25;  // 128 MiB each: beyond any cache

template <class Work>
double seconds_of(Work work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// The three products of `count` pairs of matrices [rows, inner] and [inner, columns], as of a linear layer: forward, and
/// the gradients of both.
class Products {
 public:
  Products(int64_t count, int64_t rows, int64_t inner, int64_t columns, at::ScalarType type)
      : x_(at::empty({count, rows, inner}, type)),
        w_(at::empty({count, inner, columns}, type)),
        y_(at::empty({count, rows, columns}, type)) {}
  double seconds() {
    for (at::Tensor* t : {&x_, &w_, &y_}) t->fill_(1e-2);
    return seconds_of([&] {
      at::bmm_out(y_, x_, w_);
      at::bmm_out(x_, y_, w_.transpose(1, 2));
      at::bmm_out(w_, x_.transpose(1, 2), y_);
    });
  }

 private:
  at::Tensor x_, w_, y_;
};

double products_of_gpt2(int64_t rows, int64_t seq, at::ScalarType type) {
  constexpr int64_t kLayers = 12, kHeads = 12, kWidth = 768, kVocab = 50257;
  double seconds = 0;
  auto add = [&](int64_t count, int64_t points, int64_t inner, int64_t columns) {
    seconds += Products(count, points, inner, columns, type).seconds();
  };
  add(1, rows * seq, kWidth, kVocab);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    for (int64_t columns : {3 * kWidth, kWidth, 4 * kWidth}) add(1, rows * seq, kWidth, columns);
    add(1, rows * seq, 4 * kWidth, kWidth);
    add(rows * kHeads, seq, kWidth / kHeads, seq);  // scores
    add(rows * kHeads, seq, seq, kWidth / kHeads);  // values
  }
  return seconds;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: step_bound THREADS ROWS SEQ\n");
    return 2;
  }
  try {
    kernels::install_caching_allocator();
    dist::set_rank_threads(std::stoi(argv[1]));
    dist::World world = dist::World::single();
    auto run = train::assemble({{"family", "gpt2"}},
                               {.mesh = layout::Mesh({1, 1, 1}),
                                .schedule = schedule::generate("gpipe", {.ranks = 1, .micro_batches = 1})},
                               64, world);
    train::make_parameters(*run, true, nullptr);
    optim::ShardedOptimizer optimizer(world, run->mesh, run->model->store, config::Optim{}, 0);
    int64_t numbers = 0;
    for (nn::Param* p : run->model->store.params()) numbers += p->data.numel();
    at::Tensor a = at::ones({kNumbers}), b = at::ones({kNumbers}), sum = at::empty({kNumbers});
    for (std::string line; std::getline(std::cin, line);) {
      double seconds = 0;
      if (line == "memory") {
        const double once = seconds_of([&] { at::add_out(sum, a, b); });
        seconds = once * (7.0 * static_cast<double>(numbers)) / (3.0 * static_cast<double>(kNumbers));
      } else if (line == "products" || line == "products bf16") {
        seconds = products_of_gpt2(std::stoll(argv[2]), std::stoll(argv[3]),
                                   line == "products" ? at::kFloat : at::kBFloat16);
      } else {
        optimizer.sync().begin();
        for (nn::Param* p : run->model->store.params()) p->grad.fill_(1e-3);
        seconds = seconds_of([&] { optimizer.step(1e-4); });
      }
      std::printf("%.6f\n", seconds);
      std::fflush(stdout);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "step_bound: %s\n", error.what());
    return 1;
  }
}
