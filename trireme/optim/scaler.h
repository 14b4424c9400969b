#pragma once
// LossScaler: the factor that lifts fp16 gradients out of the range in which they vanish, and the
// rule by which it moves. A pure value that knows no tensor and no rank: ranks that see the same
// overflows hold the same scale.
//
// The rule is that of Megatron's and ColossalAI's dynamic scalers. From the `hysteresis`-th overflow
// on, each lowers the scale, until `growth_interval` steps in a row without one raise it and the
// count of overflows starts anew. A fixed scale never moves.
//
//   LossScaler scaler(config.train.amp);
//   ... gradients of the loss times scaler.scale() ...;  scaler.update(overflowed);

#include "trireme/config/run_config.h"

namespace trireme::optim {

class LossScaler {
 public:
  /// What a checkpoint keeps.
  struct State {
    double scale = 1;
    int64_t clean_steps = 0;  // in a row
    int64_t overflows = 0;    // since the scale was raised last
    bool operator==(const State&) const = default;
  };

  explicit LossScaler(const config::Amp& amp);

  double scale() const { return state_.scale; }
  /// Can overflows not lower the scale any further?
  bool exhausted() const { return amp_.loss_scale || state_.scale <= amp_.min_scale; }
  /// Counts a step, which overflowed or did not.
  void update(bool overflowed);

  const State& state() const { return state_; }
  /// A fixed scale stays as it is configured.
  void set_state(const State& state);

 private:
  config::Amp amp_;
  State state_;
};

}  // namespace trireme::optim
