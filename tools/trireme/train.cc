// trireme train and trireme eval.
#include <atomic>
#include <csignal>
#include <cstdio>

#include "tools/trireme/config_options.h"
#include "tools/trireme/ranks.h"
#include "tools/trireme/subcommands.h"
#include "trireme/base/error.h"
#include "trireme/base/wording.h"
#include "trireme/checkpoint/folder.h"
#include "trireme/comm/launch.h"
#include "trireme/comm/launched.h"
#include "trireme/config/load.h"
#include "trireme/data/dataset.h"
#include "trireme/dist/rendezvous.h"
#include "trireme/models/registry.h"
#include "trireme/train/evaluator.h"
#include "trireme/train/lr_curve.h"
#include "trireme/train/report.h"
#include "trireme/train/trainer.h"

namespace trireme::tools {
namespace {

constexpr int kBadInput = 2;  // the exit code of a wrong configuration or file

// What a signal handler may touch is static by nature.
std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void request_stop(int) { stop_requested = true; }

struct TrainFlags {
  ConfigOptions config;
  int ranks = 0;
  bool resume = false, dry_run = false, plot_lr = false, json = false;
};

void print_lr(const config::RunConfig& config, int64_t steps) {
  std::printf("\n%s", train::draw_lr(config, steps).c_str());
}

void print_lr_json(const config::RunConfig& config, int64_t steps) {
  constexpr int64_t kPoints = 1000;
  base::Json points = base::Json::array();
  for (const train::LrPoint& point : train::lr_points(config, steps, kPoints))
    points.push_back({{"step", point.step}, {"lr", point.lr}});
  std::printf("%s\n", base::Json({{"steps", steps}, {"points", points}}).dump().c_str());
}

void print_dry_run(const train::Prepared& run) {
  std::printf("%s\n%s\ntrain      %s\n", config::to_yaml(run.config).c_str(),
              train::layout_report(run.config, run.description, run.placement.mesh, run.plan).c_str(),
              run.train_data->description().c_str());
  if (run.valid_data) std::printf("valid      %s\n", run.valid_data->description().c_str());
  std::printf("length     %ld steps, %ld samples\n", static_cast<long>(run.length.steps),
              static_cast<long>(run.length.samples));
}

int train_main(const TrainFlags& flags) {
  if (!flags.dry_run) {
    std::signal(SIGTERM, request_stop);
    std::signal(SIGINT, request_stop);
  }
  // Before ranks start or meet, so that a mistake is found once and told without their losses of one another.
  const train::Prepared run = train::prepare(flags.config.load(), job_size(flags.ranks));
  if (flags.dry_run) {
    if (!flags.json) print_dry_run(run);
    if (flags.plot_lr) (flags.json ? print_lr_json : print_lr)(run.config, run.length.steps);
    return 0;
  }
  // A launcher that starts the ranks again wants the run to go on.
  const bool resume = flags.resume || comm::launched_rank().restarts > 0;
  train::open_resumed(run, resume);
  if (stop_requested && comm::launched_rank().source.empty()) {
    std::printf("stopped before the first step\n");
    return 0;
  }
  const int code = run_processes(flags.ranks, run.config.train.dist.timeout_s, run.config.train.device, [&](dist::World& world) {
    bool first = world.rank() == 0;
    base::Logger log(world.size() > 1 && !comm::launcher_prefixes() ? fmt::format("rank {}", world.rank()) : "",
                     first ? base::LogLevel::info : base::LogLevel::warning);
    if (std::string warning = dist::placement_warning(run.placement.mesh, world); first && !warning.empty())
      log.warning("{}", warning);
    train::TrainSummary summary;
    try {
      summary = train::train(run, world, {.resume = resume, .stop = &stop_requested}, log);
    } catch (const std::exception& e) {
      log.write_file(fmt::format("error: {}", e.what()));  // the launcher tells the first cause alone
      throw;
    }
    if (!first) return;
    const std::string steps = base::counted(summary.step, "step");
    if (summary.stopped) {
      std::printf("stopped after step %ld; resume with: %s --resume\n", static_cast<long>(summary.step),
                  flags.config.command("train", flags.ranks).c_str());
    } else if (summary.checkpoint.empty()) {
      std::printf("nothing left to do: the run has finished its %s\n", steps.c_str());
    } else {
      std::printf("finished %s; checkpoint %s\n", steps.c_str(), summary.checkpoint.c_str());
    }
  });
  // What was wrong with the input or a file of the checkpoint would be so again.
  if (code != 0 && code != kBadInput && flags.ranks > 1 && !stop_requested)
    if (const auto latest = checkpoint::find_latest(run.config.train.output_dir + "/checkpoints"))
      fmt::print(stderr, "{} is whole; resume with: {} --resume\n", *latest,
                 flags.config.command("train", flags.ranks));
  return code;
}

struct EvalFlags {
  ConfigOptions config;
  std::string checkpoint;
  int ranks = 0;
  bool json = false, average = false;
};

int eval_main(const EvalFlags& flags) {
  config::RunConfig given = flags.config.load();
  if (given.data.valid.empty()) throw base::ConfigError("data.valid is empty: name a dataset to evaluate on");
  const int ranks = job_size(flags.ranks);
  const config::RunConfig config = config::resolved(given, ranks);
  const config::BatchPlan plan = config::resolve_batch(config.train, *config.train.dist.data_parallel_size);
  const checkpoint::Checkpoint checkpoint(flags.checkpoint.empty() ? config.train.output_dir : flags.checkpoint);
  const base::Json& tree = checkpoint.model_config();
  const train::Placement placement = train::placement_of(config, ranks, plan.micro_batches);
  train::describe(tree, placement, config.data.seq_length);
  int64_t vocab_size = models::make_model(tree, placement.mesh.size(layout::Axis::tp)).vocab_size;
  auto dataset = train::open_data(config, config.data.valid, false, vocab_size);
  return run_processes(flags.ranks, config.train.dist.timeout_s, config.train.device, [&](dist::World& world) {
    auto assembly = train::assemble(tree, placement, config.data.seq_length, world);
    train::make_parameters(*assembly, false, &checkpoint, config.train.zero_optimization.effective_stage());
    if (flags.average) train::load_averages(*assembly, checkpoint);
    train::Evaluation found = train::Evaluator(*assembly, dataset, plan, config.train.evaluation.eval_samples,
                                              config.train.evaluation.metrics).run();
    if (world.rank() != 0) return;
    if (flags.json) {
      base::Json out = {{"loss", found.loss}, {"perplexity", found.perplexity()}, {"tokens", found.tokens}};
      for (const auto& [name, value] : found.values) out[name] = value;
      std::printf("%s\n", out.dump().c_str());
    } else {
      std::printf("checkpoint  %s\nloss        %.6f\n", checkpoint.path().c_str(), found.loss);
      if (found.of_tokens) std::printf("perplexity  %.4f\n", found.perplexity());
      std::printf("%-11s %ld\n", found.of_tokens ? "tokens" : "labels", static_cast<long>(found.tokens));
      for (const auto& [name, value] : found.values) std::printf("%-11s %.6f\n", name.c_str(), value);
    }
  });
}

}  // namespace

void add_train(CLI::App& program) {
  auto flags = std::make_shared<TrainFlags>();
  CLI::App* command = program.add_subcommand("train", "train a model");
  flags->config.add_to(*command);
  command->add_option("--ranks", flags->ranks, "start N local processes (default: the launcher's, or one)")
      ->check(CLI::Range(1, 1 << 20));
  command->add_flag("--resume", flags->resume, "go on from the newest checkpoint of train.output_dir");
  CLI::Option* dry_run = command->add_flag("--dry-run", flags->dry_run, "check everything, print the resolved configuration, the layout and each rank's memory, and stop");
  CLI::Option* plot = command
                          ->add_flag("--plot-lr", flags->plot_lr,
                                     "draw the learning rate over the run (with --dry-run)")
                          ->needs(dry_run);
  command->add_flag("--json", flags->json, "with --plot-lr: one JSON document of at most 1000 points, alone")
      ->needs(plot);
  command->callback([flags] { exit_with(train_main(*flags)); });
}

void add_eval(CLI::App& program) {
  auto flags = std::make_shared<EvalFlags>();
  CLI::App* command = program.add_subcommand("eval", "loss and perplexity of a checkpoint on the validation data");
  flags->config.add_to(*command);
  command->add_option("--checkpoint", flags->checkpoint, "checkpoint or Hugging Face folder (default: the run's latest)");
  command->add_flag("--ema", flags->average, "the weights' moving averages (optim.ema) in place of the weights");
  command->add_option("--ranks", flags->ranks, "start N local processes (default: the launcher's, or one)")
      ->check(CLI::Range(1, 1 << 20));
  command->add_flag("--json", flags->json, "one JSON document");
  command->callback([flags] { exit_with(eval_main(*flags)); });
}

}  // namespace trireme::tools
