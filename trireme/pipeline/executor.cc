#include "trireme/pipeline/executor.h"

#include <ATen/ATen.h>

#include <chrono>

#include "trireme/base/error.h"

namespace trireme::pipeline {

using schedule::Action;
using schedule::Op;

namespace {

/// Receives that may be open beyond the current action: enough to hide a message behind one
/// action's work.
constexpr size_t kReceivesAhead = 2;

bool is_receive(Op op) {
  return op == Op::RecvF || op == Op::RecvB;
}

schedule::Schedule prepared(const schedule::Schedule& schedule, const nn::Model& model,
                            const dist::DeviceMesh& mesh) {
  schedule::Schedule full = schedule::with_communication(schedule);
  schedule::check(full);
  const int stages = mesh.mesh.size(layout::Axis::pp);
  if (full.ranks != stages)
    throw base::ConfigError(fmt::format("schedule {} is for {} stages, but the mesh has {}",
                                        full.name, full.ranks, stages));
  if (full.chunks != std::ssize(model.layers_per_chunk))
    throw base::ConfigError(
        fmt::format("schedule {} has {} chunks, but the model was built with {}", full.name,
                    full.chunks, model.layers_per_chunk.size()));
  return full;
}

}  // namespace

/// What lives as long as one step.
struct Executor::Step {
  std::span<const nn::Batch> batches;
  nn::Random random;
  nn::Mode mode;
  const RunOptions& options;
  StepResult result = {};
  std::map<std::tuple<Op, int, int>, nn::State> waiting = {};  // by the action that takes it
  std::vector<at::Tensor> losses = {};                         // by micro-batch
  comm::Work weight_known = {};
  size_t posted = 0;  // position in the program up to which receives are posted
  size_t open = 0;    // receives posted and not yet taken

  bool takes_part(const Action& action) const { return batches[action.micro_batch].rows > 0; }
};

Executor::Executor(const schedule::Schedule& schedule, nn::Model& model,
                   const dist::DeviceMesh& mesh, const StageOptions& options,
                   StepObserver* observer)
    : schedule_(prepared(schedule, model, mesh)),
      model_(model),
      mesh_(mesh),
      trains_(!schedule_.forward_only()),
      splits_(static_cast<size_t>(schedule_.chunks) * schedule_.micro_batches, false),
      stage_(model, mesh, options, observer),
      p2p_(model, mesh.pp, schedule_, trains_) {
  int held = 0;
  for (int rank : schedule_.rank_of_chunk)
    local_chunk_.push_back(rank == mesh.coord.pp ? held++ : -1);
  base::check(held == std::ssize(model.chunks),
              "schedule {} puts {} chunks on stage {}, the model {}", schedule_.name, held,
              mesh.coord.pp, model.chunks.size());
  for (const Action& action : schedule_.program[mesh.coord.pp])
    if (action.op == Op::W)
      splits_[action.chunk * schedule_.micro_batches + action.micro_batch] = true;
}

StepResult Executor::run(std::span<const nn::Batch> micro_batches, const nn::Random& random,
                         nn::Mode mode, const RunOptions& options) {
  base::check(std::ssize(micro_batches) == schedule_.micro_batches,
              "schedule {} runs {} micro-batches, but {} were given", schedule_.name,
              schedule_.micro_batches, micro_batches.size());
  base::check(options.caches.empty() || options.caches.size() == micro_batches.size(),
              "{} caches for {} micro-batches", options.caches.size(), micro_batches.size());
  base::check(options.loss || !trains_, "a schedule with backward passes needs the loss");
  const auto start = std::chrono::steady_clock::now();
  auto now = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };

  Step step{.batches = micro_batches, .random = random, .mode = mode, .options = options};
  step.losses.resize(micro_batches.size());
  if (options.outputs && local_chunk_.back() >= 0) step.result.outputs.resize(micro_batches.size());
  int64_t taking_part = 0;
  for (const nn::Batch& batch : micro_batches) {
    if (batch.rows == 0) continue;
    ++taking_part;
    if (options.loss) step.result.weight += model_.def.loss_weight(batch);
  }
  if (options.loss)
    step.weight_known = mesh_.dp.all_reduce(&step.result.weight, 1, base::DType::i64);
  if (trains_) stage_.begin_step(taking_part);

  const std::vector<Action>& program = schedule_.program[mesh_.coord.pp];
  for (size_t position = 0; position < program.size(); ++position) {
    const Action& action = program[position];
    if (!step.takes_part(action)) continue;
    post_receives(position, step);
    const double begin = options.record ? now() : 0;
    execute(action, step);
    step.result.peak_live = std::max(step.result.peak_live, stage_.live());
    if (options.record) step.result.executed.push_back({action, begin, now()});
  }

  if (trains_) stage_.end_step();
  step.weight_known.wait();
  p2p_.finish();
  if (options.loss) {
    // Summed in the order of micro-batches, whatever the schedule's; tensor ranks hold the same.
    double& sum = step.result.loss_sum;
    if (mesh_.coord.tp == 0)
      for (const at::Tensor& loss : step.losses)
        if (loss.defined()) sum += loss.item<double>();
    // Over the world, so that the order of operations on dp is left to gradients.
    mesh_.world.all_reduce(&sum, 1, base::DType::f64).wait();
  }
  return std::move(step.result);
}

void Executor::execute(const Action& action, Step& step) {
  const auto [op, chunk, micro_batch] = action;
  const nn::Batch& batch = step.batches[micro_batch];
  switch (op) {
    case Op::F:
      return forward(action, step);
    case Op::B:
    case Op::I:
      return backward(action, step);
    case Op::W:
      return stage_.weights(local_chunk_[chunk], micro_batch);
    case Op::SendF:
    case Op::SendB:
      return p2p_.send(action, take(op, chunk, micro_batch, step), batch);
    case Op::RecvF:
    case Op::RecvB:
      step.waiting[{op == Op::RecvF ? Op::F : Op::B, chunk, micro_batch}] =
          p2p_.receive(action, batch);
      --step.open;
      return;
  }
}

void Executor::forward(const Action& action, Step& step) {
  const auto [op, chunk, micro_batch] = action;
  const nn::Context context = this->context(micro_batch, step);
  const bool splits = splits_[chunk * schedule_.micro_batches + micro_batch];
  const Keep keep = !trains_ ? Keep::nothing : splits ? Keep::split_weights : Keep::graph;
  nn::State in = chunk == 0 ? nn::State() : take(Op::F, chunk, micro_batch, step);
  nn::State out = stage_.forward(local_chunk_[chunk], micro_batch, std::move(in), context, keep);
  if (!trains_) step.result.peak_live = std::max<int64_t>(step.result.peak_live, 1);
  if (!is_last(chunk)) {
    const bool sends = schedule_.crosses(chunk, chunk + 1);
    step.waiting[{sends ? Op::SendF : Op::F, sends ? chunk : chunk + 1, micro_batch}] =
        std::move(out);
    return;
  }
  if (step.options.loss)
    step.losses[micro_batch] = stage_.loss(local_chunk_[chunk], micro_batch, out, context);
  if (step.options.outputs)
    for (const auto& [name, tensor] : out.tensors())
      step.result.outputs[micro_batch].set(name, tensor.detach());
}

void Executor::backward(const Action& action, Step& step) {
  const auto [op, chunk, micro_batch] = action;
  nn::State gradients;
  if (is_last(chunk)) {
    step.weight_known.wait();
    const int64_t weight = step.result.weight;
    // Without a counted item in the whole batch there is no mean; all gradients are zero.
    gradients = stage_.loss_gradients(local_chunk_[chunk], micro_batch,
                                      weight > 0 ? 1.0 / static_cast<double>(weight) : 0.0);
  } else {
    gradients = take(Op::B, chunk, micro_batch, step);
  }
  gradients = stage_.backward(local_chunk_[chunk], micro_batch, std::move(gradients));
  if (chunk == 0) return;
  const bool sends = schedule_.crosses(chunk, chunk - 1);
  step.waiting[{sends ? Op::SendB : Op::B, sends ? chunk : chunk - 1, micro_batch}] =
      std::move(gradients);
}

void Executor::post_receives(size_t position, Step& step) {
  const std::vector<Action>& program = schedule_.program[mesh_.coord.pp];
  // The current action's own receive, if it is one, is always posted.
  for (; step.posted < program.size() && (step.open < kReceivesAhead || step.posted <= position);
       ++step.posted) {
    const Action& action = program[step.posted];
    if (!is_receive(action.op) || !step.takes_part(action)) continue;
    p2p_.post(action, step.batches[action.micro_batch]);
    ++step.open;
  }
}

nn::Context Executor::context(int micro_batch, const Step& step) const {
  nn::Context context{.batch = step.batches[micro_batch], .mode = step.mode, .random = step.random};
  if (!step.options.caches.empty()) context.cache = &step.options.caches[micro_batch];
  return context;
}

nn::State Executor::take(Op op, int chunk, int micro_batch, Step& step) {
  auto node = step.waiting.extract({op, chunk, micro_batch});
  base::check(!node.empty(), "schedule {}: nothing is there for {}", schedule_.name,
              to_string(Action{op, chunk, micro_batch}));
  return std::move(node.mapped());
}

}  // namespace trireme::pipeline
