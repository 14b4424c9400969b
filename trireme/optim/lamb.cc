#include <ATen/ATen.h>

#include <cmath>

#include "trireme/optim/rules.h"

namespace trireme::optim {
namespace {

double squares_of(const at::Tensor& tensor) {
  return tensor.square().sum(at::kDouble).item<double>();
}

class Lamb final : public Optimizer {
 public:
  Lamb(const config::Optim& options, WholeTensors whole)
      : options_(options), whole_(std::move(whole)) {
    check_moments(options);
  }
  std::vector<State> states(const layout::ParamSpec&) const override {
    return {{"exp_avg"}, {"exp_avg_sq"}};
  }
  std::vector<std::string> state_names() const override { return {"exp_avg", "exp_avg_sq"}; }
  bool collective() const override { return true; }

  void step(std::span<const Segment> segments, double lr, int64_t step,
            double grad_scale) const override {
    const double beta1 = options_.betas[0], beta2 = options_.betas[1];
    const double correction1 = 1 - std::pow(beta1, step);
    const double root = std::sqrt(1 - std::pow(beta2, step));
    std::vector<at::Tensor> updates;
    std::vector<std::vector<double>> norms(whole_.size(), {0, 0});  // squares: parameter, update
    for (const Segment& segment : segments) {
      const at::Tensor &m = segment.state[0], &v = segment.state[1];
      const at::Tensor grad = segment.grad * grad_scale;
      m.mul_(beta1).add_(grad, 1 - beta1);
      v.mul_(beta2).addcmul_(grad, grad, 1 - beta2);
      at::Tensor update = m / v.sqrt().div_(root).add_(options_.eps);
      update.div_(correction1).add_(segment.data, segment.weight_decay);
      std::vector<double>& sums = norms[whole_.index(segment.param)];
      sums[0] += squares_of(segment.data);
      sums[1] += squares_of(update);
      updates.push_back(std::move(update));
    }
    whole_.sum(norms);
    for (size_t i = 0; i < segments.size(); ++i) {
      const Segment& segment = segments[i];
      const std::vector<double>& sums = norms[whole_.index(segment.param)];
      const double trust = sums[0] > 0 && sums[1] > 0 ? std::sqrt(sums[0] / sums[1]) : 1;
      segment.data.sub_(updates[i], lr * segment.lr_scale * trust);
    }
  }

 private:
  config::Optim options_;
  WholeTensors whole_;
};

}  // namespace

std::unique_ptr<Optimizer> make_lamb(const config::Optim& options, WholeTensors whole) {
  return std::make_unique<Lamb>(options, std::move(whole));
}

}  // namespace trireme::optim
