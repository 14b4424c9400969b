#include <ATen/ATen.h>

#include "trireme/base/error.h"
#include "trireme/optim/rules.h"

namespace trireme::optim {
namespace {

class Sgd final : public Optimizer {
 public:
  explicit Sgd(const config::Optim& options)
      : momentum_(momentum_of(options, 0)), nesterov_(options.nesterov.value_or(false)) {
    if (nesterov_ && momentum_ == 0)
      throw base::ConfigError("optim.nesterov looks ahead along the momentum: set optim.momentum");
    if (momentum_ > 0) names_.push_back("momentum_buffer");
  }
  std::vector<State> states(const layout::ParamSpec&) const override {
    if (names_.empty()) return {};
    return {{names_.front()}};
  }
  std::vector<std::string> state_names() const override { return names_; }
  void step(std::span<const Segment> segments, double lr, int64_t,
            double grad_scale) const override {
    if (segments.empty()) return;
    kernels::sgd(pieces_of(segments), type_of(segments),
                 {.lr = lr, .momentum = momentum_, .nesterov = nesterov_}, grad_scale, segments.front().data.device());
  }

 private:
  double momentum_;
  bool nesterov_;
  std::vector<std::string> names_;
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(const config::Optim& options) {
  return std::make_unique<Sgd>(options);
}

}  // namespace trireme::optim
