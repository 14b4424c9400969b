#include "trireme/nn/batch_norm.h"

#include <ATen/ATen.h>

#include "trireme/base/error.h"
#include "trireme/dist/redistribute.h"
#include "trireme/nn/parametric.h"

namespace trireme::nn {

using layout::Init;
using layout::Sbp;

BatchNorm::BatchNorm(const Builder& builder, int64_t features, const Options& options)
    : dp_(&builder.dp()),
      options_(options),
      mean_(builder.buffer("running_mean", {features}, Init::zeros())),
      variance_(builder.buffer("running_var", {features}, Init::ones())) {
  if (!options.affine) return;
  weight_ = builder.param("weight", {features}, Init::ones(), Sbp::invariant());
  bias_ = builder.param("bias", {features}, Init::zeros(), Sbp::invariant());
}

at::Tensor BatchNorm::forward(const at::Tensor& x, const Context& context) const {
  at::Tensor mean = mean_->data, variance = variance_->data;
  if (context.mode == Mode::train) {
    const auto rows = static_cast<double>(x.size(0) * dp_->size());
    if (rows < 2)
      throw base::ConfigError(
          "statistics over the rows of a micro-batch need two of them: raise "
          "train.train_micro_batch_size");
    const auto over_rows = [&](const at::Tensor& t) {
      const at::Tensor sum = t.sum(0);
      return (dp_->size() == 1 ? sum
                               : dist::redistribute(sum, *dp_, Sbp::partial(), Sbp::replicated())) /
             rows;
    };
    mean = over_rows(x);
    variance = over_rows((x - mean).square());
    at::NoGradGuard no_grad;
    for (int64_t view = 0; view < x.size(1); ++view) {
      mean_->data.lerp_(mean[view].detach(), options_.momentum);
      variance_->data.lerp_(variance[view].detach() * (rows / (rows - 1)), options_.momentum);
    }
  }
  const at::Tensor normal = (x - mean) * (variance + options_.eps).rsqrt();
  return weight_ ? normal * use(weight_, context) + use(bias_, context) : normal;
}

}  // namespace trireme::nn
