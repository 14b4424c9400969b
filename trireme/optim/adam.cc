#include <ATen/ATen.h>

#include "trireme/optim/rules.h"

namespace trireme::optim {
namespace {

class Adam final : public Optimizer {
 public:
  Adam(const config::Optim& options, bool decoupled) : options_(options), decoupled_(decoupled) {
    check_moments(options);
  }
  std::vector<State> states(const layout::ParamSpec&) const override {
    return {{"exp_avg"}, {"exp_avg_sq"}};
  }
  std::vector<std::string> state_names() const override { return {"exp_avg", "exp_avg_sq"}; }
  void step(std::span<const Segment> segments, double lr, int64_t step,
            double grad_scale) const override {
    if (segments.empty()) return;
    kernels::adam(pieces_of(segments), type_of(segments),
                  {.lr = lr,
                   .beta1 = options_.betas[0],
                   .beta2 = options_.betas[1],
                   .eps = options_.eps,
                   .step = step,
                   .decoupled = decoupled_},
                  grad_scale, segments.front().data.device());
  }

 private:
  config::Optim options_;
  bool decoupled_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adam(const config::Optim& options, bool decoupled) {
  return std::make_unique<Adam>(options, decoupled);
}

}  // namespace trireme::optim
