#include <ATen/ATen.h>

#include "trireme/optim/rules.h"

namespace trireme::optim {
namespace {

class Lion final : public Optimizer {
 public:
  explicit Lion(const config::Optim& options) : options_(options) { check_moments(options); }
  std::vector<State> states(const layout::ParamSpec&) const override { return {{"exp_avg"}}; }
  std::vector<std::string> state_names() const override { return {"exp_avg"}; }
  void step(std::span<const Segment> segments, double lr, int64_t,
            double grad_scale) const override {
    if (segments.empty()) return;
    kernels::lion(pieces_of(segments), type_of(segments),
                  {.lr = lr, .beta1 = options_.betas[0], .beta2 = options_.betas[1]}, grad_scale, segments.front().data.device());
  }

 private:
  config::Optim options_;
};

}  // namespace

std::unique_ptr<Optimizer> make_lion(const config::Optim& options) {
  return std::make_unique<Lion>(options);
}

}  // namespace trireme::optim
