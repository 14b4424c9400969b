#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>

#include <cstdio>

#include "trireme/nn/state.h"

int main() {
  trireme::nn::State state;
  state.set("x", at::ones({2, 3}));
  double sum = state.at("x").sum().item<double>();
  std::printf("sum %g\n", sum);
  return sum == 6 ? 0 : 1;
}
