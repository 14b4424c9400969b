#pragma once
// Contribution: what one use of a parameter adds to its gradient. Making it counts it; its pieces are added to the
// gradient as they come. The first contribution of a step replaces what the gradient's memory held, so nobody fills
// large buffers with zeros. Of a frozen parameter it is counted and not made.
//
//   Contribution(weight).add_product(gradients, inputs);

#include <utility>

#include "trireme/nn/param_store.h"

namespace trireme::nn {

class Contribution {
 public:
  explicit Contribution(Param* param);
  /// Is it made at all?
  bool wanted() const { return !param_->frozen; }
  void add(const at::Tensor& piece);
  /// The sum over rows, made in the type of the gradient.
  void add_rows(const at::Tensor& rows);
  /// a^T b. 16-bit products are made in 16 bits and added in fp32.
  void add_product(const at::Tensor& a, const at::Tensor& b);
  /// A piece that is zero but for some rows, which follow one another in it.
  void add_to_rows(const std::vector<layout::Range>& rows, const at::Tensor& piece);
  /// The gradient's memory, to be added to; zeros where nothing was there.
  at::Tensor& memory();

 private:
  bool begins() { return std::exchange(replaces_, false); }
  Param* param_;
  bool replaces_ = false;  // the next piece replaces what the memory holds
};

}  // namespace trireme::nn
