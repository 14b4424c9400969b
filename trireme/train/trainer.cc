#include "trireme/train/trainer.h"

#include <chrono>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/kernels/allocator.h"
#include "trireme/optim/groups.h"
#include "trireme/optim/lr.h"
#include "trireme/train/auto_schedule.h"
#include "trireme/train/evaluator.h"
#include "trireme/train/execute_pipeline.h"
#include "trireme/train/metrics.h"
#include "trireme/train/progress.h"
#include "trireme/train/run_state.h"
#include "trireme/train/trace.h"

namespace trireme::train {
namespace {

// The largest value over ranks of whether to stop and of the memory that was live at most.
std::pair<bool, int64_t> agree(const TrainOptions& options, const comm::Comm& world) {
  int64_t values[2] = {options.stop && options.stop->load(), kernels::memory_counters().peak};
  world.all_reduce(values, 2, base::DType::i64, comm::Reduce::max).wait();
  return {values[0] != 0, values[1]};
}

}  // namespace

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
  if (!resumed && config.model.contains("pretrained"))
    source.emplace(config.model["pretrained"].get<std::string>());

  auto run = assemble(prepared.model, prepared.placement, config.data.seq_length, world);
  const dist::DeviceMesh& mesh = run->mesh;
  open_folder(config, mesh.world, log);
  optim::freeze(run->model->store, config.optim);
  make_parameters(*run, true, source ? &*source : nullptr);
  optim::ShardedOptimizer optimizer(world, mesh, run->model->store, config.optim,
                                    config.train.zero_optimization.effective_stage());
  Position position;
  if (resumed) position = restore_run(*source, optimizer);
  OverlappedSync overlap(optimizer.sync());
  pipeline::Executor executor(run->schedule, *run->model, mesh, stage_options(config), &overlap);
  std::optional<Evaluator> evaluator;
  if (prepared.valid_data)
    evaluator.emplace(*run, prepared.valid_data, plan, config.train.evaluation.eval_samples);
  data::Loader loader(prepared.train_data, {.micro_batch_size = plan.micro_batch_size,
                                   .micro_batches = plan.micro_batches,
                                   .dp_rank = mesh.coord.dp,
                                   .dp_size = mesh.mesh.size(layout::Axis::dp),
                                   .first_sample = position.consumed_samples,
                                   .end_sample = length.samples,
                                   .prefetch = config.data.prefetch});

  const bool reports = mesh.world.rank() == 0;
  std::optional<MetricsWriter> metrics;
  std::optional<Progress> progress;
  if (reports) {
    metrics.emplace(config.train.output_dir, position.step);
    progress.emplace(length.steps, position.step, config.train.log_period, log);
    if (resumed) progress->message(fmt::format("resumed from {}", source->path()));
    else if (options.resume) progress->message(fmt::format("no checkpoint in {}: starting from the first step", config.train.output_dir));
    std::string note = resumed ? note_on_resume(prepared, *source->manifest()) : "";
    if (!note.empty()) progress->message(note);
  }
  source.reset();

  TrainSummary summary{.step = position.step};
  while (position.step < length.steps && !summary.stopped) {
    auto started = std::chrono::steady_clock::now();
    std::vector<nn::Batch> batches = to_tensors(loader.next());
    const bool traced = config.train.trace.covers(position.step + 1);
    pipeline::StepResult result = execute_pipeline(
        executor, optimizer, batches,
        {.seed = static_cast<uint64_t>(config.train.seed), .step = static_cast<uint64_t>(position.step)},
        {.record = traced});
    double lr = optim::learning_rate(config.train.scheduler, config.optim.lr, position.step, length.steps);
    // Without a counted token there is no gradient, and a step would only decay the weights.
    optim::StepReport report;
    if (result.weight > 0) report = optimizer.step(lr);
    else optimizer.sync().finish();
    ++position.step;
    position.consumed_samples = std::min(position.consumed_samples + plan.global_batch_size, length.samples);
    auto [stop, memory] = agree(options, mesh.world);
    std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - started;
    summary.step = position.step;
    summary.loss = result.loss();
    if (reports) {
      StepMetrics line{.step = position.step, .loss = result.loss(), .lr = lr, .grad_norm = report.grad_norm,
                       .tokens = position.consumed_samples * config.data.seq_length,
                       .samples = position.consumed_samples, .step_seconds = seconds.count(),
                       .tokens_per_second = static_cast<double>(plan.global_batch_size * config.data.seq_length) / seconds.count(),
                       .memory = memory};
      metrics->write(line);
      progress->step(line);
    }
    if (reports && result.weight == 0)
      progress->message(fmt::format("step {} skipped: none of its tokens counts (all labels are ignored)", position.step));
    if (traced) {
      const std::string table = write_trace(config.train.output_dir + "/trace", position.step, run->schedule, result, mesh);
      if (reports) progress->message(table);
    }
    bool last = position.step == length.steps;
    summary.stopped = stop && !last;
    if (evaluator && (position.step % config.train.evaluation.eval_period == 0 || last)) {
      auto begun = std::chrono::steady_clock::now();
      Evaluation found = evaluator->run();
      std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
      EvalMetrics line{.step = position.step, .eval_loss = found.loss, .tokens = found.tokens, .seconds = took.count()};
      if (reports) metrics->write(line), progress->evaluated(line);
    }
    if (position.step % config.train.checkpointer.period == 0 || last || summary.stopped) {
      summary.checkpoint = save_run(prepared, *run, optimizer, position);
      if (reports) progress->message("checkpoint " + summary.checkpoint);
    }
  }
  return summary;
}

}  // namespace trireme::train
