#include "trireme/train/checkpoints.h"

#include <cmath>

namespace trireme::train {

Checkpoints::Checkpoints(const Prepared& run, const Assembly& assembly, const optim::ShardedOptimizer& optimizer,
                         const StepGuard& guard, bool resumed, Reporter& reporter)
    : run_(run),
      assembly_(assembly),
      optimizer_(optimizer),
      guard_(guard),
      reporter_(reporter),
      saver_(assembly.mesh.world),
      best_(resumed ? best_eval_loss(run.config) : std::nullopt) {}

void Checkpoints::advance(bool any_working) {
  if (!saver_.in_flight() || any_working) return;
  if (auto path = saver_.advance()) finished(*path);
}

void Checkpoints::evaluated(double loss) {
  loss_ = loss;
  improved_ = run_.config.train.checkpointer.keep_best && std::isfinite(loss) && (!best_ || loss < *best_);
  if (improved_) best_ = loss;
}

void Checkpoints::after_step(const Position& position, bool ends) {
  const config::Checkpointer& options = run_.config.train.checkpointer;
  const std::optional<double> loss = std::exchange(loss_, {});
  const bool improved = std::exchange(improved_, false);
  if (position.step % options.period != 0 && !ends && !improved) return;
  if (saver_.in_flight()) finished(saver_.finish());
  checkpoint::SaveRequest request = checkpoint_of(run_, assembly_, optimizer_, guard_, position);
  if (loss) request.manifest.metrics = {{"eval_loss", *loss}};
  request.best = improved;
  options.async && !ends ? saver_.start(request) : finished(saver_.save(request));
}

void Checkpoints::finished(const std::string& path) {
  newest_ = path;
  reporter_.message("checkpoint " + path);
}

}  // namespace trireme::train
