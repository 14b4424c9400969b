#include "trireme/train/auto_schedule.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/base/median.h"
#include "trireme/base/wording.h"
#include "trireme/checkpoint/together.h"
#include "trireme/dist/device.h"
#include "trireme/models/registry.h"
#include "trireme/pipeline/executor.h"
#include "trireme/schedule/choose.h"
#include "trireme/train/evaluator.h"
#include "trireme/train/execute_pipeline.h"

namespace trireme::train {
namespace {

using base::median;
using layout::Axis;
using Clock = std::chrono::steady_clock;

constexpr int kWarmUpSteps = 1, kMeasuredSteps = 3, kMicroBatches = 4;
constexpr double kMs = 1e3, kMiB = 1.0 / (1 << 20);  // the profile is in milliseconds and MiB
const schedule::Units kUnits{.time = "ms", .memory = "MiB"};

/// Times every pass through a layer, and what a forward pass leaves in memory; not what the exchange around it takes.
class LayerClock : public pipeline::StepObserver {
 public:
  LayerClock(size_t layers, pipeline::StepObserver& exchange, c10::Device device)
      : exchange_(&exchange), device_(device), forward_(layers), backward_(layers), bytes_(layers) {}
  void before_layer(int layer, pipeline::Pass pass) override {
    exchange_->before_layer(layer, pass);
    dist::synchronize(device_);
    live_ = dist::memory_counters(device_).live;
    begin_ = Clock::now();
  }
  void after_layer(int layer, pipeline::Pass pass) override {
    dist::synchronize(device_);
    const std::chrono::duration<double> took = Clock::now() - begin_;
    if (pass == pipeline::Pass::forward)
      bytes_[layer].push_back(static_cast<double>(dist::memory_counters(device_).live - live_));
    if (pass != pipeline::Pass::weights)  // timed as actions
      (pass == pipeline::Pass::forward ? forward_ : backward_)[layer].push_back(took.count());
    exchange_->after_layer(layer, pass);
  }
  void end_step() override { exchange_->end_step(); }
  schedule::ChunkCosts costs(int layer) const {
    return {.f = kMs * median(forward_[layer]),
            .i = kMs * median(backward_[layer]),
            .w = 0,
            .activation = kMiB * std::max(0.0, median(bytes_[layer]))};
  }

 private:
  pipeline::StepObserver* exchange_;
  c10::Device device_;
  std::vector<std::vector<double>> forward_, backward_, bytes_;
  Clock::time_point begin_;
  int64_t live_ = 0;
};

/// Milliseconds of a message of `bytes` between the first two stages.
double message_time(const dist::DeviceMesh& mesh, int64_t bytes) {
  const comm::Comm& pp = mesh.pp;
  if (pp.size() == 1) return 0;
  std::vector<double> times;
  const at::Tensor message = at::zeros({bytes}, at::TensorOptions(at::kByte).device(mesh.device));
  void* const data = dist::pointer(message, pp);
  if (!mesh.device.is_cpu()) pp.connect();
  pp.barrier();
  for (int i = 0; pp.rank() < 2 && i < 5; ++i) {
    const auto begin = Clock::now();
    const int peer = 1 - pp.rank();
    if (pp.rank() == 0) pp.isend(data, bytes, peer, 0).wait();
    pp.irecv(data, bytes, peer, 0).wait();
    if (pp.rank() == 1) pp.isend(data, bytes, peer, 0).wait();
    dist::synchronize(mesh.device);
    times.push_back(std::chrono::duration<double>(Clock::now() - begin).count() / 2);
  }
  return kMs * median(times);
}

std::vector<int> layers_of(const nn::ModelDef& def, const std::vector<int>& blocks_per_chunk) {
  std::vector<int> layers(blocks_per_chunk.size(), 0);
  for (int chunk : nn::chunk_of_layers(def, blocks_per_chunk)) ++layers[chunk];
  return layers;
}

struct Measured {
  schedule::Profile profile;  // of one micro-batch, the slowest rank's
  double message = 0;         // MiB of a message between stages
  double variation = 0;       // by what share the work of a step took longer one time than another, half of it
};

/// Times each layer of the chain and a message between stages. Runs a few steps on the first samples; nothing of them
/// stays. Collective over the world.
Measured profile_layers(const Prepared& given, dist::World& world) {
  config::RunConfig probe = given.config;
  probe.train.dist.schedule = "zb-h1";  // input and weight gradients apart
  probe.train.dist.chunks.reset();
  probe.train.dist.custom_pipeline_stage_id.reset();
  const int64_t micro_batches = std::min<int64_t>(given.plan.micro_batches, kMicroBatches);
  auto run = assemble(given.model, placement_of(probe, world.size(), micro_batches),
                      probe.data.seq_length, world);
  const int zero_stage = probe.train.zero_optimization.effective_stage();
  make_parameters(*run, true, nullptr, zero_stage);
  const dist::DeviceMesh& mesh = run->mesh;
  data::Loader loader(given.train_data, {.micro_batch_size = given.plan.micro_batch_size,
                                         .micro_batches = micro_batches,
                                         .dp_rank = mesh.coord.dp,
                                         .dp_size = mesh.mesh.size(Axis::dp),
                                         .skip = run->model->foreign_inputs()});
  const std::vector<nn::Batch> batches = to_tensors(loader.next(), mesh.device);

  const size_t layers = run->model->def.layers.size();
  optim::GradSync sync(world, mesh, run->model->store, zero_stage);
  OverlappedSync exchange(sync, run->parameters.get());
  LayerClock clock(layers, exchange, mesh.device);
  pipeline::Executor executor(run->schedule, *run->model, mesh, stage_options(probe, mesh.coord.pp), &clock);
  std::vector<double> weights, work;  // of this stage: its weight gradients, all of each step
  for (int step = 0; step < kWarmUpSteps + kMeasuredSteps; ++step) {
    if (step == kWarmUpSteps) clock = LayerClock(layers, exchange, mesh.device);
    sync.begin();
    pipeline::StepResult result = executor.run(batches, {}, nn::Mode::train, {.record = true});
    sync.finish();
    if (step < kWarmUpSteps) continue;
    double& busy = work.emplace_back(0);
    for (const schedule::Span& span : result.executed) {
      if (span.action.op == schedule::Op::W) weights.push_back(kMs * (span.end - span.begin));
      if (schedule::is_compute(span.action.op)) busy += span.end - span.begin;
    }
  }

  Measured measured;
  schedule::Profile& profile = measured.profile;
  profile.layers.resize(layers, {.f = 0, .i = 0, .w = 0, .activation = 0});
  double forward = 0;
  for (int layer : run->model->layer_indices[0])
    forward += (profile.layers[layer] = clock.costs(layer)).f;
  for (int layer : run->model->layer_indices[0])
    profile.layers[layer].w = forward > 0 ? median(weights) * profile.layers[layer].f / forward : 0;
  int64_t bytes = 64;
  if (mesh.pp.size() > 1)
    for (const nn::TensorSpec& tensor :
         run->model->entering(run->model->layers_per_chunk[0], batches[0].shape()))
      bytes += layout::element_count(tensor.shape) * base::size_of(tensor.dtype);
  measured.message = kMiB * static_cast<double>(bytes);
  profile.comm = message_time(mesh, bytes);

  // Of each layer the slowest holder's times; every rank knows all of them.
  const auto [shortest, longest] = std::ranges::minmax(work);
  std::vector<double> all{(longest - shortest) / (2 * median(work)), profile.comm};
  for (const schedule::ChunkCosts& c : profile.layers)
    all.insert(all.end(), {c.f, c.i, c.w, c.activation});
  mesh.world.all_reduce(all.data(), std::ssize(all), base::DType::f64, comm::Reduce::max).wait();
  measured.variation = all[0];
  profile.comm = all[1];
  for (size_t i = 0; i < layers; ++i)
    profile.layers[i] = {.f = all[4 * i + 2],
                         .i = all[4 * i + 3],
                         .w = all[4 * i + 4],
                         .activation = all[4 * i + 5]};
  return measured;
}

/// The best schedule under the run's memory limit, by the measured costs of its layers; rank 0 tells all of them.
schedule::Candidate best_of(const Prepared& run, const Measured& measured, bool first, base::Logger& log) {
  // Less is lost by a slightly longer step than by a run that does not fit; more than a few percent is a loss.
  constexpr double kLeastMargin = 0.02, kMostMargin = 0.05;
  const config::Dist& dist = run.config.train.dist;
  const nn::ModelDef def = models::make_model(run.model, dist.tensor_parallel_size);
  schedule::Question question{.ranks = dist.pipeline_parallel_size,
                              .micro_batches = static_cast<int>(run.plan.micro_batches),
                              .chunks = dist.chunks,
                              .message = measured.message};
  question.costs = [&](int chunks) {
    return schedule::cut(measured.profile, layers_of(def, blocks_per_chunk(run.config, chunks)));
  };
  if (dist.auto_memory_mb) question.memory = *dist.auto_memory_mb;
  question.margin = std::clamp(measured.variation, kLeastMargin, kMostMargin);
  const schedule::Choice choice = schedule::choose(question);
  if (first) log.info("{}", schedule::to_text(choice, kUnits));
  if (choice.best < 0)
    throw base::ConfigError(
        fmt::format("train.dist.schedule auto: {}; raise train.dist.auto_memory_mb {}, or switch on "
                    "train.activation_checkpoint",
                    schedule::shortfall(choice, kUnits), dist.auto_memory_mb.value_or(0)));
  const schedule::Candidate& best = choice.candidates[choice.best];
  if (first)
    log.info("schedule {} with {} a stage: {:.1f} ms a step expected, the least memory within {:.0f} % of the shortest",
             best.name, base::counted(best.chunks_per_rank, "chunk"), best.simulation.makespan, 100 * question.margin);
  return best;
}

/// What a choice depends on, beside the model and the machine: KEY VALUE, KEY VALUE, ...
std::vector<std::string> circumstances(const Prepared& run) {
  const config::Train& train = run.config.train;
  const auto or_null = [](const auto& value) { return value ? fmt::format("{}", *value) : std::string("null"); };
  std::vector<std::string> all = {
      fmt::format("pipeline_parallel_size {}", train.dist.pipeline_parallel_size),
      fmt::format("tensor_parallel_size {}", train.dist.tensor_parallel_size),
      fmt::format("num_accumulation_steps {}", run.plan.micro_batches),
      fmt::format("train_micro_batch_size {}", run.plan.micro_batch_size),
      fmt::format("seq_length {}", run.config.data.seq_length),
      "chunks " + or_null(train.dist.chunks),
      "auto_memory_mb " + or_null(train.dist.auto_memory_mb),
      "balance " + train.dist.balance};
  if (train.dist.custom_pipeline_stage_id)
    all.push_back(fmt::format("custom_pipeline_stage_id {}", fmt::join(*train.dist.custom_pipeline_stage_id, " ")));
  const config::ActivationCheckpoint& recompute = train.activation_checkpoint;
  if (recompute.enabled) all.push_back(fmt::format("activation_checkpoint {} {}", recompute.mode, recompute.every));
  return all;
}

/// schedule.txt: "# NAME, chosen for CIRCUMSTANCES", then the program.
constexpr std::string_view kChosenFor = ", chosen for ";

std::string to_file(const schedule::Schedule& schedule, const Prepared& run) {
  return fmt::format("# {}{}{}\n{}", schedule.name, kChosenFor, fmt::join(circumstances(run), ", "),
                     schedule::to_text(schedule));
}

/// What an earlier run, or an earlier start of this one, chose into `file`, where that still answers this one's question;
/// else nothing, and a note.
std::optional<schedule::Schedule> kept(const std::string& file, const Prepared& run, bool first, base::Logger& log) {
  const std::string text = base::read_file(file);
  const std::string title = text.substr(0, text.find('\n'));
  const size_t at = title.find(kChosenFor);
  const std::string before = at == std::string::npos ? "" : title.substr(at + kChosenFor.size());
  const std::vector<std::string> now = circumstances(run);
  if (before == fmt::format("{}", fmt::join(now, ", "))) {
    schedule::Schedule schedule = schedule::read(file, "train.dist.schedule auto");
    schedule.name = title.substr(2, at - 2);
    return schedule;
  }
  std::vector<std::string> other;
  for (const std::string& word : now)
    if ((", " + before + ",").find(", " + word + ",") == std::string::npos) other.push_back(word);
  if (first)
    log.info("note: {} was chosen for other circumstances; choosing again with {}", file,
             fmt::join(other.empty() ? now : other, ", "));
  return {};
}

schedule::Schedule chosen(const Prepared& run, dist::World& world, base::Logger& log) {
  const bool first = world.rank() == 0;
  if (first) log.info("schedule auto: timing the model's layers");
  return best_of(run, profile_layers(run, world), first, log).schedule;
}

}  // namespace

Prepared resolve_schedule(Prepared run, bool resume, dist::World& world, base::Logger& log) {
  const config::Dist& dist = run.config.train.dist;
  if (dist.schedule != "auto") return run;
  const bool first = world.rank() == 0;
  if (dist.pipeline_parallel_size == 1 && !dist.auto_memory_mb && !dist.chunks) {
    if (first) log.info("schedule auto: 1f1b, for one stage leaves nothing to choose");
    return run;
  }
  const std::string own = run.config.train.output_dir + "/schedule.txt";
  std::optional<std::string> earlier = dist.auto_choice;
  if (resume && std::filesystem::exists(own)) earlier = own;
  if (earlier && !std::filesystem::exists(*earlier)) {
    throw base::ConfigError(fmt::format("train.dist.auto_choice: there is no file {}; name the schedule.txt of an earlier "
                                        "run, or set it to null to choose again", *earlier));
  }
  std::optional<schedule::Schedule> schedule;
  if (earlier) schedule = kept(*earlier, run, first, log);
  run.placement.schedule = schedule ? *schedule : chosen(run, world, log);
  checkpoint::together(dist::DeviceMesh(world, run.placement.mesh).world, [&] {
    if (!first) return std::string();
    base::make_folders(run.config.train.output_dir, "making the run's folder");
    base::write_file_atomic(own, to_file(run.placement.schedule, run));
    return std::string();
  });
  run.config.train.dist.auto_choice = own;
  run.placement.blocks_per_chunk = blocks_per_chunk(run.config, run.placement.schedule.chunks);
  run.description = describe(run.model, run.placement, run.config.data.seq_length);
  return run;
}

}  // namespace trireme::train
