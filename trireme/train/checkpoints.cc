#include "trireme/train/checkpoints.h"

#include <cmath>

#include "trireme/train/eval_metric.h"

namespace trireme::train {

Checkpoints::Checkpoints(const Prepared& run, const Assembly& assembly, const optim::ShardedOptimizer& optimizer,
                         const StepGuard& guard, bool resumed, Reporter& reporter)
    : run_(run),
      assembly_(assembly),
      optimizer_(optimizer),
      guard_(guard),
      reporter_(reporter),
      saver_(assembly.mesh.world),
      best_(resumed ? best_evaluation(run.config) : std::nullopt) {}

void Checkpoints::advance(bool any_working) {
  if (!saver_.in_flight() || any_working) return;
  if (auto path = saver_.advance()) finished(*path);
}

void Checkpoints::evaluated(const EvalMetrics& found) {
  measured_ = {{"eval_loss", found.eval_loss}};
  for (const auto& [name, value] : found.values) measured_["eval_" + name] = value;
  const std::optional<std::string>& wanted = run_.config.train.checkpointer.keep_best;
  if (!wanted) return;
  const double value = measured_.at(*wanted).get<double>();
  const bool higher = *wanted != "eval_loss" && eval_metrics().get(wanted->substr(5))()->higher_is_better();
  improved_ = std::isfinite(value) && (!best_ || (higher ? value > *best_ : value < *best_));
  if (improved_) best_ = value;
}

void Checkpoints::after_step(const Position& position, bool ends) {
  const config::Checkpointer& options = run_.config.train.checkpointer;
  base::Json measured = std::exchange(measured_, {});
  const bool improved = std::exchange(improved_, false);
  if (position.step % options.period != 0 && !ends && !improved) return;
  if (saver_.in_flight()) finished(saver_.finish());
  checkpoint::SaveRequest request = checkpoint_of(run_, assembly_, optimizer_, guard_, position);
  if (!measured.is_null()) request.manifest.metrics = std::move(measured);
  request.best = improved;
  options.async && !ends ? saver_.start(request) : finished(saver_.save(request));
}

void Checkpoints::finished(const std::string& path) {
  newest_ = path;
  reporter_.message("checkpoint " + path);
}

}  // namespace trireme::train
