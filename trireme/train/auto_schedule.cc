#include "trireme/train/auto_schedule.h"

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/base/median.h"
#include "trireme/checkpoint/together.h"
#include "trireme/kernels/allocator.h"
#include "trireme/models/registry.h"
#include "trireme/pipeline/executor.h"
#include "trireme/schedule/choose.h"
#include "trireme/train/evaluator.h"

namespace trireme::train {
namespace {

using base::median;
using layout::Axis;
using Clock = std::chrono::steady_clock;

constexpr int kWarmUpSteps = 1, kMeasuredSteps = 3, kMicroBatches = 4;

/// Times every pass through a layer, and what a forward pass leaves in memory.
class LayerClock : public pipeline::StepObserver {
 public:
  explicit LayerClock(size_t layers) : forward_(layers), backward_(layers), bytes_(layers) {}
  void before_layer(int, pipeline::Pass) override {
    live_ = kernels::memory_counters().live;
    begin_ = Clock::now();
  }
  void after_layer(int layer, pipeline::Pass pass) override {
    const std::chrono::duration<double> took = Clock::now() - begin_;
    (pass == pipeline::Pass::forward ? forward_ : backward_)[layer].push_back(took.count());
    if (pass == pipeline::Pass::forward)
      bytes_[layer].push_back(static_cast<double>(kernels::memory_counters().live - live_));
  }
  schedule::ChunkCosts costs(int layer) const {
    return {.f = median(forward_[layer]),
            .i = median(backward_[layer]),
            .w = 0,
            .activation = std::max(0.0, median(bytes_[layer]))};
  }

 private:
  std::vector<std::vector<double>> forward_, backward_, bytes_;
  Clock::time_point begin_;
  int64_t live_ = 0;
};

/// Seconds of a message of `bytes` between the first two stages.
double message_time(const comm::Comm& pp, int64_t bytes) {
  if (pp.size() == 1) return 0;
  std::vector<double> times;
  std::vector<std::byte> buffer(bytes);
  pp.barrier();
  for (int i = 0; pp.rank() < 2 && i < 5; ++i) {
    const auto begin = Clock::now();
    const int peer = 1 - pp.rank();
    if (pp.rank() == 0) pp.isend(buffer.data(), bytes, peer, 0).wait();
    pp.irecv(buffer.data(), bytes, peer, 0).wait();
    if (pp.rank() == 1) pp.isend(buffer.data(), bytes, peer, 0).wait();
    times.push_back(std::chrono::duration<double>(Clock::now() - begin).count() / 2);
  }
  return median(times);
}

std::vector<int> layers_of(const nn::ModelDef& def, const std::vector<int>& blocks_per_chunk) {
  std::vector<int> layers(blocks_per_chunk.size(), 0);
  for (int chunk : nn::chunk_of_layers(def, blocks_per_chunk)) ++layers[chunk];
  return layers;
}

/// Seconds and bytes of each layer of the chain for one micro-batch (the slowest rank's), and of a message between
/// stages. Runs a few steps on the first samples; nothing of them stays. Collective over the world.
schedule::Profile profile_layers(const Prepared& given, dist::World& world) {
  config::RunConfig probe = given.config;
  probe.train.dist.schedule = "zb-h1";  // input and weight gradients apart
  probe.train.dist.chunks.reset();
  const int64_t micro_batches = std::min<int64_t>(given.plan.micro_batches, kMicroBatches);
  auto run = assemble(given.model, placement_of(probe, world.size(), micro_batches),
                      probe.data.seq_length, world);
  make_parameters(*run, true, nullptr);
  const dist::DeviceMesh& mesh = run->mesh;
  data::Loader loader(given.train_data, {.micro_batch_size = given.plan.micro_batch_size,
                                         .micro_batches = micro_batches,
                                         .dp_rank = mesh.coord.dp,
                                         .dp_size = mesh.mesh.size(Axis::dp)});
  const std::vector<nn::Batch> batches = to_tensors(loader.next());

  const size_t layers = run->model->def.layers.size();
  LayerClock clock(layers);
  pipeline::Executor executor(run->schedule, *run->model, mesh, stage_options(probe), &clock);
  std::vector<double> weights;  // seconds of this stage's weight gradients
  for (int step = 0; step < kWarmUpSteps + kMeasuredSteps; ++step) {
    if (step == kWarmUpSteps) clock = LayerClock(layers);
    pipeline::StepResult result = executor.run(batches, {}, nn::Mode::train, {.record = true});
    for (const schedule::Span& span : result.executed)
      if (span.action.op == schedule::Op::W && step >= kWarmUpSteps)
        weights.push_back(span.end - span.begin);
  }

  schedule::Profile profile;
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
  profile.comm = message_time(mesh.pp, bytes);

  // Of each layer the slowest holder's times; every rank knows all of them.
  std::vector<double> all{profile.comm};
  for (const schedule::ChunkCosts& c : profile.layers)
    all.insert(all.end(), {c.f, c.i, c.w, c.activation});
  mesh.world.all_reduce(all.data(), std::ssize(all), base::DType::f64, comm::Reduce::max).wait();
  profile.comm = all[0];
  for (size_t i = 0; i < layers; ++i)
    profile.layers[i] = {.f = all[4 * i + 1],
                         .i = all[4 * i + 2],
                         .w = all[4 * i + 3],
                         .activation = all[4 * i + 4]};
  return profile;
}

/// The fastest schedule under the run's memory limit, by the measured costs of its layers; rank 0 tells all of them.
schedule::Candidate fastest(const Prepared& run, const schedule::Profile& profile, bool first, base::Logger& log) {
  const config::Dist& dist = run.config.train.dist;
  const nn::ModelDef def = models::make_model(run.model, dist.tensor_parallel_size);
  schedule::Question question{.ranks = dist.pipeline_parallel_size,
                              .micro_batches = static_cast<int>(run.plan.micro_batches)};
  question.costs = [&](int chunks) {
    return schedule::cut(profile, layers_of(def, blocks_per_chunk(run.config, chunks)));
  };
  if (dist.auto_memory_mb) question.memory = *dist.auto_memory_mb * (1 << 20);
  const schedule::Choice choice = schedule::choose(question);
  if (first) log.info("{}", schedule::to_text(choice));
  if (choice.best < 0)
    throw base::ConfigError(
        fmt::format("train.dist.schedule auto: no schedule fits into train.dist.auto_memory_mb "
                    "{}; raise it, or switch on train.activation_checkpoint",
                    dist.auto_memory_mb.value_or(0)));
  return choice.candidates[choice.best];
}

}  // namespace

Prepared resolve_schedule(Prepared run, bool resume, dist::World& world, base::Logger& log) {
  config::Dist& dist = run.config.train.dist;
  if (dist.schedule != "auto" || dist.schedule_file) return run;
  const std::string& folder = run.config.train.output_dir;
  const std::string file = folder + "/schedule.txt";
  if (!(resume && std::filesystem::exists(file))) {
    const bool first = world.rank() == 0;
    if (first) log.info("schedule auto: timing the model's layers");
    const dist::DeviceMesh mesh(world, run.placement.mesh);
    const schedule::Candidate best = fastest(run, profile_layers(run, world), first, log);
    dist.schedule = best.name;
    dist.chunks = best.chunks_per_rank;
    if (first)
      log.info("schedule {} with {} chunk{} a stage: {:.1f} ms a step expected", best.name,
               best.chunks_per_rank, best.chunks_per_rank == 1 ? "" : "s",
               best.simulation.makespan * 1e3);
    checkpoint::together(mesh.world, [&] {
      if (!first) return std::string();
      base::make_folders(folder, "making the run's folder");
      base::write_file_atomic(file, schedule::to_text(best.schedule));
      return std::string();
    });
  }
  dist.schedule_file = file;
  run.placement = placement_of(run.config, world.size(), run.plan.micro_batches);
  run.description = describe(run.model, run.placement, run.config.data.seq_length);
  return run;
}

}  // namespace trireme::train
