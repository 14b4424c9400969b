#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "trireme/optim/groups.h"
#include "trireme/optim/rules.h"

namespace trireme::optim {
namespace {

constexpr int kIterations = 5;

// Brings the singular values of a matrix near 1 (Newton-Schulz with the quintic of Jordan et al.).
at::Tensor orthogonalised(const at::Tensor& matrix) {
  constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
  const bool tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = tall ? matrix.t() : matrix;
  x = x / x.norm().clamp_min(1e-7);
  for (int i = 0; i < kIterations; ++i) {
    const at::Tensor gram = at::mm(x, x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, kB, kC), x, kA);
  }
  return tall ? x.t() : x;
}

class Muon final : public Optimizer {
 public:
  Muon(const config::Optim& options, WholeTensors whole)
      : options_(options),
        momentum_(momentum_of(options, 0.95)),
        nesterov_(options.nesterov.value_or(true)),
        whole_(std::move(whole)),
        others_(make_adam(options, true)) {}
  std::vector<State> states(const layout::ParamSpec& spec) const override {
    if (is_matrix(spec)) return {{"momentum_buffer"}};
    return others_->states(spec);
  }
  std::vector<std::string> state_names() const override {
    return {"momentum_buffer", "exp_avg", "exp_avg_sq"};
  }
  bool collective() const override { return true; }

  void step(std::span<const Segment> segments, double lr, int64_t step,
            double grad_scale) const override {
    std::vector<Segment> others;
    std::vector<std::vector<const Segment*>> matrices(whole_.size());
    for (const Segment& segment : segments) {
      if (is_matrix(segment.param->spec))
        matrices[whole_.index(segment.param)].push_back(&segment);
      else
        others.push_back(segment);
    }
    others_->step(others, lr, step, grad_scale);
    for (size_t i = 0; i < matrices.size(); ++i)
      if (is_matrix(whole_.param(i)->spec)) step_matrix(i, matrices[i], lr, grad_scale);
  }

 private:
  bool is_matrix(const layout::ParamSpec& spec) const {
    return spec.shape.size() == 2 &&
           std::ranges::none_of(options_.muon_exclude, [&](const std::string& pattern) {
             return matches(pattern, spec.name);
           });
  }

  // Every rank that holds a part of the matrix orthogonalises the whole.
  void step_matrix(size_t index, const std::vector<const Segment*>& segments, double lr,
                   double grad_scale) const {
    const nn::Param* param = whole_.param(index);
    at::Tensor local = at::empty({param->slice.count()}, at::TensorOptions(nn::wide_type(param->spec.dtype)).device(whole_.device()));
    for (const Segment* segment : segments) {
      const at::Tensor& momentum = segment->state[0];
      const at::Tensor grad = segment->grad * grad_scale;
      momentum.mul_(momentum_).add_(grad, 1 - momentum_);
      at::Tensor part = local.narrow(0, segment->flat.begin, segment->flat.size());
      part.copy_(nesterov_ ? grad.mul_(1 - momentum_).add_(momentum, momentum_) : momentum);
    }
    const at::Tensor update =
        whole_.local_slice(index, orthogonalised(whole_.gather(index, local)));
    const auto& shape = param->spec.shape;
    const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(shape[0], shape[1])));
    for (const Segment* segment : segments) {
      const double rate = lr * segment->lr_scale;
      segment->data.mul_(1 - rate * segment->weight_decay)
          .sub_(update.narrow(0, segment->flat.begin, segment->flat.size()), rate * scale);
    }
  }

  config::Optim options_;
  double momentum_;
  bool nesterov_;
  WholeTensors whole_;
  std::unique_ptr<Optimizer> others_;
};

}  // namespace

std::unique_ptr<Optimizer> make_muon(const config::Optim& options, WholeTensors whole) {
  return std::make_unique<Muon>(options, std::move(whole));
}

}  // namespace trireme::optim
