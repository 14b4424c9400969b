#pragma once
// BatchNorm: normalisation by feature over the rows of a micro-batch (Ioffe and Szegedy, 2015),
// those of all data ranks together, so that every layout has the same statistics as one rank with
// all the rows. A model that has one needs whole batches (ModelDef::whole_batches). Its running
// statistics are buffers: forward passes of training write them, evaluation reads them. Not for
// layers that recompute may run twice.
//
//   nn::BatchNorm norm(b.whole() / "norm", 4096, {.affine = false});
//   at::Tensor y = norm.forward(x, context);

#include "trireme/nn/builder.h"
#include "trireme/nn/context.h"

namespace trireme::nn {

class BatchNorm {
 public:
  struct Options {
    double eps = 1e-5;
    double momentum = 0.1;  // share of a batch's statistics in the running ones
    bool affine = true;
  };
  /// `builder`: off the residual stream (Builder::whole).
  BatchNorm(const Builder& builder, int64_t features, const Options& options);
  /// x [rows, views, features]: each view has statistics of its own, which enter the running ones
  /// in order. Collective over data ranks in training, local in evaluation.
  at::Tensor forward(const at::Tensor& x, const Context& context) const;

 private:
  const comm::Comm* dp_;
  Options options_;
  Param *mean_, *variance_;
  Param *weight_ = nullptr, *bias_ = nullptr;
};

}  // namespace trireme::nn
