#include "trireme/train/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "trireme/layout/slices.h"
#include "trireme/optim/groups.h"
#include "trireme/optim/optimizers.h"

namespace trireme::train {

using layout::Axis;

namespace {

// Bytes of what a rank holds of a parameter, and of its gradient.
struct Bytes {
  int64_t parameter = 0, gradient = 0;
  bool alone = false;  // no other data rank has them
};
std::map<std::string, Bytes> bytes_held(const layout::ModelDescription& model, const layout::Mesh& mesh,
                                        const layout::Coord& coord, const config::Optim& optim) {
  std::map<std::string, Bytes> held;
  for (const layout::ParamSpec& spec : model.parameters) {
    if (!layout::holds(spec, coord)) continue;
    const int64_t count = layout::local_slice(spec, mesh, coord).count(), size = base::size_of(spec.dtype);
    held[spec.name] = {count * size, optim::is_frozen(spec, optim) ? 0 : count * std::max<int64_t>(4, size),
                       spec.layout.data_rank.has_value()};
  }
  return held;
}

// The same of each layer's parameters together that data ranks share; a tied one counts in each that uses it.
std::vector<Bytes> bytes_by_layer(const layout::ModelDescription& model, const std::map<std::string, Bytes>& held) {
  std::vector<Bytes> layers;
  for (const layout::LayerDescription& layer : model.layers) {
    Bytes& sum = layers.emplace_back();
    for (const std::string& name : layer.parameters) {
      const auto found = held.find(name);
      if (found == held.end() || found->second.alone) continue;
      sum.parameter += found->second.parameter;
      sum.gradient += found->second.gradient;
    }
  }
  return layers;
}

}  // namespace

RankMemory rank_memory(const layout::ModelDescription& model, const layout::Mesh& mesh, const layout::Coord& coord,
                       const config::Optim& optim, int zero_stage) {
  const auto rule = optim::make_optimizer(optim);
  const std::map<std::string, Bytes> held = bytes_held(model, mesh, coord, optim);
  const int ranks = mesh.size(Axis::dp);
  RankMemory memory, alone;
  int64_t split = 0, whole = 0;
  for (const layout::ParamSpec& spec : model.parameters) {
    if (!held.contains(spec.name)) continue;
    const Bytes& bytes = held.at(spec.name);
    (bytes.alone ? alone : memory).parameters += bytes.parameter;
    (bytes.alone ? alone : memory).gradients += bytes.gradient;
    if (optim::is_frozen(spec, optim)) continue;
    int64_t& kept = bytes.alone ? whole : split;
    if (bytes.gradient > bytes.parameter) kept += bytes.gradient;  // masters
    if (optim.ema.decay) kept += bytes.gradient;
    for (const optim::State& state : rule->states(spec)) {
      if (state.shape)
        whole += layout::element_count(*state.shape) * std::max<int64_t>(4, base::size_of(spec.dtype));
      else
        kept += bytes.gradient;
    }
  }
  const auto shard = [&](int64_t bytes, int from_stage) {
    return zero_stage >= from_stage ? layout::split_range(bytes, ranks, coord.dp).size() : bytes;
  };
  memory.optimizer = optim.offload ? 0 : whole + shard(split, 1);
  memory.gradients = shard(memory.gradients, 2) + alone.gradients;
  memory.parameters = shard(memory.parameters, 3) + alone.parameters;
  if (ranks == 1) return memory;
  int64_t before = 0;
  for (const Bytes& layer : bytes_by_layer(model, held)) {
    const int64_t now = (zero_stage >= 2 ? layer.gradient : 0) + (zero_stage >= 3 ? layer.parameter : 0);
    memory.working = std::max(memory.working, before + now);
    before = now;
  }
  return memory;
}

StepTraffic step_traffic(const layout::ModelDescription& model, const layout::Mesh& mesh, const layout::Coord& coord,
                         const config::Optim& optim, int zero_stage, int64_t micro_batches) {
  StepTraffic traffic;
  if (mesh.size(Axis::dp) == 1) return traffic;
  const std::map<std::string, Bytes> held = bytes_held(model, mesh, coord, optim);
  Bytes once, by_layer;
  for (const auto& [name, bytes] : held)
    if (!bytes.alone) once.parameter += bytes.parameter, once.gradient += bytes.gradient;
  for (const Bytes& layer : bytes_by_layer(model, held))
    by_layer.parameter += layer.parameter, by_layer.gradient += layer.gradient;
  traffic.gradients = zero_stage >= 2 ? micro_batches * by_layer.gradient : once.gradient;
  if (zero_stage >= 3)
    traffic.parameters = 2 * micro_batches * by_layer.parameter;
  else if (zero_stage >= 1)
    traffic.parameters = once.parameter;
  return traffic;
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
      "{:>5}  {:>6}  {:>14}  {:>12}  {:>12}  {:>12}  {:>12}  {:>12}  {:>20}\n",
      config.model.value("family", config.model.value("model_type", "model")), total,
      std::count_if(model.layers.begin(), model.layers.end(), [](const auto& l) { return l.block; }),
      mesh.size(Axis::pp), mesh.size(Axis::dp), mesh.size(Axis::tp), mesh.size(),
      config.train.dist.sequence_parallel ? " (sequence parallel)" : "", zero, schedule_named(config.train.dist),
      plan.global_batch_size, config.data.seq_length, mesh.size(Axis::dp), plan.micro_batches, plan.micro_batch_size,
      "stage", "blocks", "parameters", "weights MiB", "grads MiB", "optim MiB", "working MiB",
      "sum MiB", "exchange MiB a step");
  for (int stage = 0; stage < mesh.size(Axis::pp); ++stage) {
    layout::Coord coord{.pp = stage, .dp = 0, .tp = 0};
    RankMemory memory = rank_memory(model, mesh, coord, config.optim, zero);
    int64_t held = 0;
    for (const layout::ParamSpec& spec : model.parameters)
      if (layout::holds(spec, coord)) held += layout::local_slice(spec, mesh, coord).count();
    const StepTraffic traffic = step_traffic(model, mesh, coord, config.optim, zero, plan.micro_batches);
    text += fmt::format("{:>5}  {:>6}  {:>14}  {:>12.1f}  {:>12.1f}  {:>12.1f}  {:>12.1f}  {:>12.1f}  {:>20.1f}\n", stage,
                        model.layers_per_stage[stage], held, memory.parameters / kMiB, memory.gradients / kMiB,
                        memory.optimizer / kMiB, memory.working / kMiB, memory.total() / kMiB,
                        (traffic.gradients + traffic.parameters) / kMiB);
  }
  text += "\nparameters and memory are of one rank (data 0, tensor 0); activations come on top\n";
  if (zero >= 2 && mesh.size(Axis::dp) > 1)
    text += fmt::format(
        "ZeRO {}: two neighbouring layers at a time are whole (working); data ranks exchange the gradients of all {} "
        "micro-batches of a step{}\n",
        zero, plan.micro_batches,
        zero >= 3 ? ", and gather the parameters for the forward and the backward pass of each" : "");
  return text;
}

}  // namespace trireme::train
