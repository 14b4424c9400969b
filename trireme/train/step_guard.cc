#include "trireme/train/step_guard.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

namespace trireme::train {

StepGuard::StepGuard(const config::Train& train)
    : divergence_(train.divergence), names_overflow_(train.amp.report_overflow) {
  if (train.working_dtype() == "fp16") scaler_.emplace(train.amp);
}

std::optional<double> StepGuard::loss_scale() const {
  return scaler_ ? std::optional(scaler_->scale()) : std::nullopt;
}

Verdict StepGuard::finish(optim::ShardedOptimizer& optimizer, const pipeline::StepResult& result,
                          double lr, int64_t step, layout::Range samples) {
  const bool ignores = divergence_.action == "ignore";
  if (result.terms.weight() == 0) {
    // Without a counted token there is no gradient, and a step would only decay the weights.
    optimizer.sync().finish();
    return {.report = {},
            .note = fmt::format(
                "step {} skipped: none of its tokens counts (all labels are ignored)", step)};
  }
  if (!std::isfinite(result.loss()) && !ignores) {
    optimizer.sync().finish();
    const optim::StepReport none{.grad_norm = std::numeric_limits<double>::quiet_NaN(),
                                 .finite = false};
    return diverged(none, fmt::format("the loss is {}", result.loss()), step, samples);
  }
  const double scale = loss_scale().value_or(1);
  const optim::StepReport report =
      optimizer.step(lr, {.loss_scale = scale, .take_not_finite = ignores && !scaler_});
  const bool exhausted = !scaler_ || scaler_->exhausted();
  if (scaler_) scaler_->update(!report.finite);
  if (report.finite || (exhausted && ignores)) {
    skipped_ = 0;
    return {.report = report, .note = {}};
  }
  const std::string first =
      exhausted || names_overflow_ ? optimizer.first_not_finite() : std::string();
  if (exhausted) {
    std::string what = fmt::format("the loss is {} and the gradient of {} is not finite",
                                   result.loss(), first);
    if (scaler_) what += fmt::format(" at loss scale {}, which cannot fall", scale);
    return diverged(report, what, step, samples);
  }
  return {.report = report,
          .note = fmt::format("step {} skipped: fp16 gradients overflowed at loss scale {}{}; the "
                              "next step's is {}",
                              step, scale, first.empty() ? "" : ", first that of " + first,
                              scaler_->scale())};
}

Verdict StepGuard::diverged(optim::StepReport report, const std::string& what, int64_t step,
                            layout::Range samples) {
  const std::string seen = fmt::format("step {}: {}; its samples are {} to {} of the run", step,
                                       what, samples.begin, samples.end - 1);
  const bool skips = divergence_.action == "skip";
  if (skips && ++skipped_ <= divergence_.limit)
    return {.report = report,
            .note = fmt::format("{}: skipped ({} of at most {} in a row)", seen, skipped_,
                                divergence_.limit)};
  return {.report = report,
          .note = fmt::format(
              "{}: the step was not taken. {}Lower optim.lr, warm up longer or clip gradients, "
              "then resume from the last checkpoint{}",
              seen,
              skips ? fmt::format("That makes {} in a row, more than train.divergence.limit. ",
                                  skipped_)
                    : "",
              skips ? "" : ", or leave out such steps with train.divergence.action=skip"),
          .stop = true};
}

base::Json StepGuard::state() const {
  base::Json json = {{"skipped", skipped_}};
  if (scaler_) {
    const optim::LossScaler::State& own = scaler_->state();
    json["scaler"] = {{"scale", own.scale},
                      {"clean_steps", own.clean_steps},
                      {"overflows", own.overflows}};
  }
  return json;
}

void StepGuard::restore(const base::Json& state) {
  if (!state.is_object()) return;
  skipped_ = state.value("skipped", int64_t{0});
  if (!scaler_ || !state.contains("scaler")) return;
  const base::Json& own = state["scaler"];
  scaler_->set_state({.scale = own.at("scale").get<double>(),
                      .clean_steps = own.at("clean_steps").get<int64_t>(),
                      .overflows = own.at("overflows").get<int64_t>()});
}

}  // namespace trireme::train
