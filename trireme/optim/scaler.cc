#include "trireme/optim/scaler.h"

#include <algorithm>

namespace trireme::optim {

LossScaler::LossScaler(const config::Amp& amp)
    : amp_(amp), state_{.scale = amp.loss_scale.value_or(amp.initial_scale)} {}

void LossScaler::update(bool overflowed) {
  if (amp_.loss_scale) return;
  if (overflowed) {
    state_.clean_steps = 0;
    if (++state_.overflows >= amp_.hysteresis)
      state_.scale = std::max(state_.scale * amp_.backoff_factor, amp_.min_scale);
  } else if (++state_.clean_steps == amp_.growth_interval) {
    state_.clean_steps = state_.overflows = 0;
    state_.scale = std::min(state_.scale * amp_.growth_factor, amp_.max_scale);
  }
}

void LossScaler::set_state(const State& state) {
  if (!amp_.loss_scale) state_ = state;
}

}  // namespace trireme::optim
