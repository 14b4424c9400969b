#include "trireme/train/trainer.h"

#include <limits>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/optim/groups.h"
#include "trireme/optim/lr.h"
#include "trireme/train/auto_schedule.h"
#include "trireme/train/checkpoints.h"
#include "trireme/train/evaluator.h"
#include "trireme/train/execute_pipeline.h"
#include "trireme/train/hook.h"
#include "trireme/train/reporter.h"
#include "trireme/train/run_state.h"
#include "trireme/train/telemetry.h"
#include "trireme/train/trace.h"

namespace trireme::train {

TrainSummary train(const config::RunConfig& config, dist::World& world, const TrainOptions& options,
                   base::Logger& log) {
  return train(prepare(config, world.size()), world, options, log);
}

TrainSummary train(const Prepared& given, dist::World& world, const TrainOptions& options, base::Logger& log) {
  std::optional<checkpoint::Checkpoint> source = open_resumed(given, options.resume);
  const Prepared prepared = resolve_schedule(given, options.resume, world, log);
  const config::RunConfig& config = prepared.config;
  const config::BatchPlan& plan = prepared.plan;
  const config::RunLength& length = prepared.length;
  const bool resumed = source.has_value();
  if (!resumed && config.model.contains("pretrained")) source.emplace(config.model["pretrained"].get<std::string>());

  auto run = assemble(prepared.model, prepared.placement, config.data.seq_length, world);
  const dist::DeviceMesh& mesh = run->mesh;
  open_folder(config, mesh.world, log);
  optim::freeze(run->model->store, config.optim);
  const int zero_stage = config.train.zero_optimization.effective_stage();
  const checkpoint::Mismatch mismatch = make_parameters(*run, true, source ? &*source : nullptr, zero_stage,
                                                        resumed || config.model.value("strict", !config.model.contains("head")));
  optim::ShardedOptimizer optimizer(world, mesh, run->model->store, config.optim, zero_stage,
                                    config.train.amp.travel_dtype());
  fill_masters(*run, optimizer, source ? &*source : nullptr);
  Position position;
  StepGuard guard(config.train);
  if (resumed) position = restore_run(*source, optimizer, guard);
  OverlappedSync overlap(optimizer.sync(), run->parameters.get());
  pipeline::Executor executor(run->schedule, *run->model, mesh, stage_options(config, mesh.coord.pp), &overlap);
  std::optional<Evaluator> evaluator;
  if (prepared.valid_data)
    evaluator.emplace(*run, prepared.valid_data, plan, config.train.evaluation.eval_samples, config.train.evaluation.metrics);
  const auto batch_size = [&config, &plan](int64_t consumed) {
    return config::batch_size_at(config.train.batch_rampup, plan.global_batch_size, consumed);
  };
  // A run of so many steps takes them whole, however large those before a resume were.
  const int64_t end = config.train.train_iter ? std::numeric_limits<int64_t>::max() : length.samples;
  data::Loader loader(prepared.train_data, {.micro_batch_size = plan.micro_batch_size,
                                   .micro_batches = plan.micro_batches,
                                   .dp_rank = mesh.coord.dp, .dp_size = mesh.mesh.size(layout::Axis::dp),
                                   .first_sample = position.consumed_samples, .end_sample = end,
                                   .last = data::last_batch_of(config.data.last_batch),
                                   .prefetch = config.data.prefetch,
                                   .skip = run->model->foreign_inputs(),
                                   .workers = config.data.workers,
                                   .stand_in = run->model->options.expert_axis == layout::Axis::dp,
                                   .batch_size = batch_size});

  Telemetry telemetry(prepared, mesh);
  Hooks hooks(config);
  Reporter reporter(mesh.world.rank() == 0, config.train, position.step, length.steps, log);
  if (resumed) reporter.message(fmt::format("resumed from {}", source->path()));
  else if (options.resume) reporter.message(fmt::format("no checkpoint in {}: starting from the first step", config.train.output_dir));
  if (resumed) reporter.message(note_on_resume(prepared, *source->manifest()));
  if (!mismatch.empty()) reporter.message(note_on_mismatch(prepared, mismatch, source->path()));
  source.reset();

  const int64_t first_step = position.step;
  TrainSummary summary{.step = position.step};
  double checkpoint_seconds = 0;  // since the last step
  Checkpoints checkpoints(prepared, *run, optimizer, guard, resumed, reporter);
  const auto now = [&] { return Moment{config, *run, optimizer, position.step}; };
  hooks.call(&Hook::before_train, now());
  while (position.step < length.steps && !summary.stopped) {
    hooks.call(&Hook::before_step, now());
    Stopwatch watch;
    std::vector<nn::Batch> batches = to_tensors(loader.next(), mesh.device);
    Phases phases{.data = watch.lap(), .checkpoint = std::exchange(checkpoint_seconds, 0)};
    const std::optional<double> loss_scale = guard.loss_scale();
    const bool traced = config.train.trace.covers(position.step + 1);
    pipeline::StepResult result = execute_pipeline(
        executor, optimizer, batches,
        {.seed = static_cast<uint64_t>(config.train.seed), .step = static_cast<uint64_t>(position.step)},
        {.record = traced, .loss_scale = loss_scale.value_or(1)});
    phases.forward = result.forward_seconds;
    phases.backward = result.backward_seconds;
    phases.wait = watch.lap() - phases.forward - phases.backward;
    // A skipped step moves neither the weights nor the learning rate.
    double lr = optim::learning_rate(config.train.scheduler, config.optim.lr, optimizer.steps_taken(), length.steps);
    const int64_t samples = std::min(batch_size(position.consumed_samples), end - position.consumed_samples);
    const layout::Range consumed{position.consumed_samples, position.consumed_samples + samples};
    const Verdict verdict = guard.finish(optimizer, result, lr, ++position.step, consumed);
    run->model->average(static_cast<double>(position.step) / static_cast<double>(length.steps));
    phases.wait += verdict.report.wait_seconds;
    phases.optimizer = watch.lap() - verdict.report.wait_seconds;
    position.consumed_samples = consumed.end;
    const StepFigures figures = telemetry.share(phases, options.stop && options.stop->load(), checkpoints.working());
    const double seconds = watch.total();
    summary.step = position.step;
    summary.loss = result.loss();
    const StepMetrics line{.step = position.step, .loss = result.loss(), .lr = lr, .grad_norm = verdict.report.grad_norm,
                           .loss_scale = loss_scale,
                           .tokens = position.consumed_samples * config.data.seq_length,
                           .samples = position.consumed_samples, .step_seconds = seconds,
                           .tokens_per_second = static_cast<double>(samples * config.data.seq_length) / seconds,
                           .model_flops_utilization = telemetry.utilization(samples, seconds),
                           .memory = figures.memory, .phases = figures.phases, .slowest_rank = figures.slowest_rank,
                           .slowest_excess = figures.slowest_excess,
                           .layers = telemetry.layer_norms(optimizer, position.step, loss_scale.value_or(1))};
    reporter.step(line);
    hooks.call(&Hook::after_step, now(), line);
    if (!verdict.note.empty()) reporter.message(verdict.note);
    if (verdict.stop) {
      mesh.world.barrier();  // the first rank that ends takes the others along: all is told before
      throw base::ConfigError(verdict.note);
    }
    if (traced) reporter.message(write_trace(config.train.output_dir + "/trace", position.step, run->schedule, result, mesh));
    bool last = position.step == length.steps;
    summary.stopped = figures.stop && !last;
    checkpoint_seconds += timed([&] { checkpoints.advance(figures.saving); });
    if (evaluator && (position.step % config.train.evaluation.eval_period == 0 || last)) {
      hooks.call(&Hook::before_evaluation, now());
      Evaluation found;
      const auto evaluate = [&] { found = evaluator->run(); };
      const double spent = timed([&] { config.train.evaluation.ema ? optimizer.on_averages(evaluate) : evaluate(); });
      const EvalMetrics evaluation{.step = position.step, .eval_loss = found.loss, .tokens = found.tokens, .of_tokens = found.of_tokens,
                                   .seconds = spent, .values = found.values};
      reporter.evaluated(evaluation);
      hooks.call(&Hook::after_evaluation, now(), evaluation);
      checkpoints.evaluated(evaluation);
    }
    checkpoint_seconds += timed([&] { checkpoints.after_step(position, last || summary.stopped); });
  }
  summary.checkpoint = checkpoints.newest();
  hooks.call(&Hook::after_train, now());
  if (summary.step > first_step) reporter.message(telemetry.write_report(config.train.output_dir, checkpoint_seconds));
  return summary;
}

}  // namespace trireme::train
