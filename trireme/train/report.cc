#include "trireme/train/report.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/layout/slices.h"
#include "trireme/optim/groups.h"
#include "trireme/optim/optimizers.h"

namespace trireme::train {

using layout::Axis;

RankMemory rank_memory(const layout::ModelDescription& model, const layout::Mesh& mesh, const layout::Coord& coord,
                       const config::Optim& optim, int zero_stage) {
  const auto rule = optim::make_optimizer(optim);
  RankMemory memory;
  int64_t split = 0, whole = 0;
  for (const layout::ParamSpec& spec : model.parameters) {
    if (!layout::holds(spec, coord.pp)) continue;
    const int64_t count = layout::local_slice(spec, mesh, coord).count(), size = base::size_of(spec.dtype);
    memory.parameters += count * size;
    if (optim::is_frozen(spec.name, optim)) continue;
    const int64_t wide = std::max<int64_t>(4, size);
    memory.gradients += count * wide;
    for (const optim::State& state : rule->states(spec)) {
      if (state.shape) whole += layout::element_count(*state.shape) * wide;
      else split += count * wide;
    }
  }
  memory.optimizer =
      whole + (zero_stage >= 1 ? layout::split_range(split, mesh.size(Axis::dp), coord.dp).size() : split);
  return memory;
}

namespace {

std::string schedule_named(const config::Dist& dist) {
  if (dist.schedule_file) return *dist.schedule_file;
  return dist.schedule == "auto" ? "auto (chosen when training starts)" : dist.schedule;
}

}  // namespace

std::string layout_report(const config::RunConfig& config, const layout::ModelDescription& model,
                          const layout::Mesh& mesh, const config::BatchPlan& plan) {
  constexpr double kMiB = 1 << 20;
  int zero = config.train.zero_optimization.effective_stage();
  int64_t total = 0;
  for (const layout::ParamSpec& spec : model.parameters) total += layout::element_count(spec.shape);
  std::string text = fmt::format(
      "model      {}, {} parameters, {} blocks\n"
      "layout     pipeline {} x data {} x tensor {} = {} ranks{}, ZeRO {}, schedule {}\n"
      "batch      {} samples of {} tokens = {} data ranks x {} micro-batches x {} samples\n\n"
      "{:>5}  {:>6}  {:>14}  {:>12}  {:>12}  {:>12}  {:>12}\n",
      config.model.value("family", config.model.value("model_type", "model")), total,
      std::count_if(model.layers.begin(), model.layers.end(), [](const auto& l) { return l.block; }),
      mesh.size(Axis::pp), mesh.size(Axis::dp), mesh.size(Axis::tp), mesh.size(),
      config.train.dist.sequence_parallel ? " (sequence parallel)" : "", zero, schedule_named(config.train.dist),
      plan.global_batch_size, config.data.seq_length, mesh.size(Axis::dp), plan.micro_batches, plan.micro_batch_size,
      "stage", "blocks", "parameters", "weights MiB", "grads MiB", "optim MiB", "sum MiB");
  for (int stage = 0; stage < mesh.size(Axis::pp); ++stage) {
    layout::Coord coord{.pp = stage, .dp = 0, .tp = 0};
    RankMemory memory = rank_memory(model, mesh, coord, config.optim, zero);
    int64_t held = 0;
    for (const layout::ParamSpec& spec : model.parameters)
      if (layout::holds(spec, stage)) held += layout::local_slice(spec, mesh, coord).count();
    text += fmt::format("{:>5}  {:>6}  {:>14}  {:>12.1f}  {:>12.1f}  {:>12.1f}  {:>12.1f}\n", stage,
                        model.layers_per_stage[stage], held, memory.parameters / kMiB, memory.gradients / kMiB,
                        memory.optimizer / kMiB, memory.total() / kMiB);
  }
  return text + "\nparameters and memory are of one rank (data 0, tensor 0); activations come on top\n";
}

}  // namespace trireme::train
