#include "trireme/pipeline/executor.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/comm/waiting.h"

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

bool is_backward(Op op) {
  return op != Op::F && op != Op::SendF && op != Op::RecvF;
}

/// Of the message that carries a micro-batch's loss to the other stages.
uint64_t loss_tag(int micro_batch) {
  return (1ULL << 63) | static_cast<uint32_t>(micro_batch);
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

/// The sums of the loss's terms as numbers.
std::vector<double> sums_of(const at::Tensor& loss) {
  const at::Tensor terms = loss.detach().to(at::kCPU, at::kDouble).contiguous();
  return {terms.const_data_ptr<double>(), terms.const_data_ptr<double>() + terms.numel()};
}

}  // namespace

double LossTerms::mean() const {
  if (weight() == 0) return std::numeric_limits<double>::quiet_NaN();
  double mean = 0;
  for (size_t i = 0; i < sums.size(); ++i)
    if (weights[i] > 0) mean += sums[i] / static_cast<double>(weights[i]);
  return mean;
}

int64_t LossTerms::weight() const { return std::accumulate(weights.begin(), weights.end(), int64_t{0}); }

void LossTerms::add(const LossTerms& more) {
  sums.resize(more.sums.size());
  weights.resize(more.weights.size());
  for (size_t i = 0; i < sums.size(); ++i) sums[i] += more.sums[i];
  for (size_t i = 0; i < weights.size(); ++i) weights[i] += more.weights[i];
}

Executor::Executor(const schedule::Schedule& schedule, nn::Model& model,
                   const dist::DeviceMesh& mesh, const StageOptions& options,
                   StepObserver* observer)
    : schedule_(prepared(schedule, model, mesh)),
      model_(model),
      mesh_(mesh),
      trains_(!schedule_.forward_only()),
      splits_(static_cast<size_t>(schedule_.chunks) * schedule_.micro_batches, false),
      stage_(model, mesh, options, observer),
      p2p_(model, mesh.pp, schedule_, trains_, mesh.device) {
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

Keep Executor::keep(int chunk, int micro_batch) const {
  if (!trains_) return Keep::nothing;
  return splits_[chunk * schedule_.micro_batches + micro_batch] ? Keep::split_weights : Keep::graph;
}

StepResult Executor::run(std::span<const nn::Batch> micro_batches, const nn::Random& random,
                         nn::Mode mode, const RunOptions& options) {
  return Step(*this, micro_batches, random, mode, options, false).finish();
}

Step Executor::begin(std::span<const nn::Batch> micro_batches, const nn::Random& random,
                     const RunOptions& options) {
  base::check(trains_, "schedule {} has no backward passes to step through", schedule_.name);
  return Step(*this, micro_batches, random, nn::Mode::train, options, true);
}

Step::Step(Executor& executor, std::span<const nn::Batch> batches, const nn::Random& random,
           nn::Mode mode, const RunOptions& options, bool stepped)
    : executor_(executor),
      batches_(batches),
      random_(random),
      mode_(mode),
      options_(options),
      stepped_(stepped),
      clock_(executor.mesh_.device),
      losses_(batches.size()),
      shared_losses_(batches.size(), std::vector<double>(executor.model_.def.loss_terms)),
      decisions_(batches.size(), stepped ? Decision::open : Decision::runs),
      scales_(batches.size(), 1.0) {
  const schedule::Schedule& schedule = executor.schedule_;
  base::check(std::ssize(batches) == schedule.micro_batches,
              "schedule {} runs {} micro-batches, but {} were given", schedule.name,
              schedule.micro_batches, batches.size());
  base::check(options.caches.empty() || options.caches.size() == batches.size(),
              "{} caches for {} micro-batches", options.caches.size(), batches.size());
  base::check(options.loss || !executor.trains_, "a schedule with backward passes needs the loss");
  // Recorded times of all ranks begin together.
  if (options.record) executor.mesh_.world.barrier();
  start_ = clock_.mark();

  if (options.outputs && executor.local_chunk_.back() >= 0) result_.outputs.resize(batches.size());
  int64_t taking_part = 0;
  const nn::ModelDef& def = executor.model_.def;
  LossTerms& terms = result_.terms;
  if (options.loss) terms = {.sums = std::vector<double>(def.loss_terms), .weights = std::vector<int64_t>(def.loss_terms)};
  const bool together = executor.model_.options.expert_axis == layout::Axis::dp && executor.mesh_.dp.size() > 1;
  for (const nn::Batch& batch : batches) {
    if (together && batch.rows == 0)
      throw base::ConfigError(
          "a micro-batch has no rows on this data rank, whose experts the tokens of the others need: give it one that counts "
          "for nothing (data::LoaderOptions::stand_in)");
    if (batch.rows == 0) continue;
    ++taking_part;
    if (options.loss)
      std::ranges::transform(terms.weights, def.loss_weight(batch), terms.weights.begin(), std::plus());
  }
  if (options.loss)
    weight_known_ = executor.mesh_.dp.all_reduce(terms.weights.data(), def.loss_terms, base::DType::i64);
  if (executor.trains_) executor.stage_.begin_step(taking_part);
}

void Step::read_times() {
  for (const auto& [action, begin, end, waited] : timed_) {
    if (is_compute(action.op))
      (is_backward(action.op) ? result_.backward_seconds : result_.forward_seconds) += clock_.seconds(begin, end) - waited;
    if (options_.record) result_.executed.push_back({action, clock_.seconds(start_, begin), clock_.seconds(start_, end)});
  }
}

bool Step::idle(const Action& action) const {
  const int m = action.micro_batch;
  return batches_[m].rows == 0 || (is_backward(action.op) && decisions_[m] == Decision::skipped);
}

MicroBatch* Step::next() {
  const std::vector<Action>& program = executor_.program();
  if (std::exchange(presented_, false)) decide(current_.index_, current_.scale_);
  for (; position_ < program.size(); ++position_) {
    const Action& action = program[position_];
    if (idle(action)) {
      pass_over(action);
      continue;
    }
    if (is_backward(action.op) && decisions_[action.micro_batch] == Decision::open)
      return present(action.micro_batch);
    try {
      post_receives();
      const dist::DeviceClock::Mark begin = clock_.mark();
      const double waited = comm::waited_seconds();
      run(action);
      timed_.push_back({action, begin, clock_.mark(), comm::waited_seconds() - waited});
      result_.peak_live = std::max(result_.peak_live, executor_.stage_.live());
    } catch (const base::CommError& e) {
      throw base::CommError(fmt::format("{} (stage {} was at {}, action {} of {} in schedule {})",
                                        e.what(), executor_.mesh_.coord.pp, to_string(action),
                                        position_ + 1, program.size(), executor_.schedule_.name));
    }
  }
  return nullptr;
}

StepResult Step::finish() {
  while (next()) {
  }
  executor_.stage_.end_step(executor_.trains_);
  weight_known_.wait();
  executor_.p2p_.finish();
  for (comm::Work& send : sends_) send.wait();
  if (options_.loss) {
    // Summed in the order of micro-batches, whatever the schedule's; tensor ranks hold the same.
    std::vector<double>& sums = result_.terms.sums;
    if (executor_.mesh_.coord.tp == 0)
      for (const at::Tensor& loss : losses_)
        if (loss.defined()) std::ranges::transform(sums, sums_of(loss), sums.begin(), std::plus());
    // Over the world, so that the order of operations on dp is left to gradients.
    executor_.mesh_.world.all_reduce(sums.data(), std::ssize(sums), base::DType::f64).wait();
  }
  dist::synchronize(executor_.mesh_.device);
  read_times();
  return std::move(result_);
}

MicroBatch* Step::present(int m) {
  const int last = executor_.schedule_.rank_of_chunk.back();
  if (executor_.mesh_.coord.pp != last)
    executor_.mesh_.pp.irecv(shared_losses_[m].data(), shared_losses_[m].size() * sizeof(double), last, loss_tag(m))
        .wait();
  current_ = MicroBatch();
  current_.index_ = m;
  current_.terms_ = {.sums = shared_losses_[m], .weights = executor_.model_.def.loss_weight(batches_[m])};
  if (!result_.outputs.empty()) current_.outputs_ = &result_.outputs[m];
  presented_ = true;
  return &current_;
}

void Step::decide(int m, std::optional<double> scale) {
  decisions_[m] = scale ? Decision::runs : Decision::skipped;
  if (scale) {
    scales_[m] = *scale;
    return;
  }
  executor_.model_.store.skip_micro_batch();
  executor_.stage_.drop(m);
}

void Step::run(const Action& action) {
  const auto [op, chunk, micro_batch] = action;
  const nn::Batch& batch = batches_[micro_batch];
  switch (op) {
    case Op::F:
      return forward(action);
    case Op::B:
    case Op::I:
      return backward(action);
    case Op::W:
      return executor_.stage_.weights(executor_.local_chunk_[chunk], micro_batch);
    case Op::SendF:
    case Op::SendB:
      return executor_.p2p_.send(action, take(op, chunk, micro_batch), batch);
    case Op::RecvF:
    case Op::RecvB:
      waiting_[{op == Op::RecvF ? Op::F : Op::B, chunk, micro_batch}] =
          executor_.p2p_.receive(action, batch);
      --open_;
      return;
  }
}

void Step::pass_over(const Action& action) {
  const auto [op, chunk, micro_batch] = action;
  if (op != Op::F && op != Op::B && op != Op::I && op != Op::W) return;
  const Pass pass = op == Op::F ? Pass::forward : op == Op::W ? Pass::weights : Pass::backward;
  executor_.stage_.pass_over(executor_.local_chunk_[chunk], pass, context(micro_batch),
                             executor_.keep(chunk, micro_batch));
}

void Step::forward(const Action& action) {
  const auto [op, chunk, micro_batch] = action;
  const schedule::Schedule& schedule = executor_.schedule_;
  Stage& stage = executor_.stage_;
  const int local = executor_.local_chunk_[chunk];
  const nn::Context context = this->context(micro_batch);
  const Keep keep = executor_.keep(chunk, micro_batch);
  nn::State in = chunk == 0 ? nn::State() : take(Op::F, chunk, micro_batch);
  nn::State out = stage.forward(local, micro_batch, std::move(in), context, keep);
  if (!executor_.trains_) result_.peak_live = std::max<int64_t>(result_.peak_live, 1);
  if (!executor_.is_last(chunk)) {
    const bool sends = schedule.crosses(chunk, chunk + 1);
    waiting_[{sends ? Op::SendF : Op::F, sends ? chunk : chunk + 1, micro_batch}] = std::move(out);
    return;
  }
  if (options_.loss) losses_[micro_batch] = stage.loss(local, micro_batch, out, context);
  if (options_.outputs)
    for (const auto& [name, tensor] : out.tensors())
      // The loss's backward takes over their memory.
      result_.outputs[micro_batch].set(
          name, executor_.trains_ ? tensor.detach().clone() : tensor.detach());
  if (!stepped_) return;
  std::vector<double>& shared = shared_losses_[micro_batch];
  shared = sums_of(losses_[micro_batch]);
  for (int peer = 0; peer < schedule.ranks; ++peer)
    if (peer != executor_.mesh_.coord.pp)
      sends_.push_back(executor_.mesh_.pp.isend(shared.data(), shared.size() * sizeof(double), peer,
                                                loss_tag(micro_batch)));
}

void Step::backward(const Action& action) {
  const auto [op, chunk, micro_batch] = action;
  const int local = executor_.local_chunk_[chunk];
  nn::State gradients;
  if (executor_.is_last(chunk)) {
    weight_known_.wait();
    // A term without a counted item in the whole batch has no mean; its gradients are zero.
    std::vector<double> shares;
    for (int64_t weight : result_.terms.weights)
      shares.push_back(weight > 0 ? scales_[micro_batch] * options_.loss_scale * (1.0 / static_cast<double>(weight)) : 0.0);
    gradients = executor_.stage_.loss_gradients(local, micro_batch, shares, losses_[micro_batch]);
  } else {
    gradients = take(Op::B, chunk, micro_batch);
  }
  gradients = executor_.stage_.backward(local, micro_batch, std::move(gradients));
  if (chunk == 0) return;
  const bool sends = executor_.schedule_.crosses(chunk, chunk - 1);
  waiting_[{sends ? Op::SendB : Op::B, sends ? chunk : chunk - 1, micro_batch}] =
      std::move(gradients);
}

void Step::post_receives() {
  const std::vector<Action>& program = executor_.program();
  // The current action's own receive, if it is one, is always posted.
  for (; posted_ < program.size() && (open_ < kReceivesAhead || posted_ <= position_); ++posted_) {
    const Action& action = program[posted_];
    if (!is_receive(action.op) || idle(action)) continue;
    // Whether this one comes at all is not known yet.
    if (action.op == Op::RecvB && decisions_[action.micro_batch] == Decision::open) return;
    executor_.p2p_.post(action, batches_[action.micro_batch]);
    ++open_;
  }
}

nn::Context Step::context(int micro_batch) const {
  nn::Context context{.batch = batches_[micro_batch], .mode = mode_, .random = random_};
  context.fuse = executor_.model_.options.fuse;
  // A step in the caller's hands needs each loss before its backward pass, and a head's weights may wait for W.
  const bool split = executor_.keep(executor_.schedule_.chunks - 1, micro_batch) == Keep::split_weights;
  if (context.fuse && executor_.model_.def.loss.from_head && options_.loss && !options_.outputs && !stepped_ && !split)
    context.loss_request.emplace();
  if (!options_.caches.empty()) context.cache = &options_.caches[micro_batch];
  return context;
}

nn::State Step::take(Op op, int chunk, int micro_batch) {
  auto node = waiting_.extract({op, chunk, micro_batch});
  base::check(!node.empty(), "schedule {}: nothing is there for {}", executor_.schedule_.name,
              to_string(Action{op, chunk, micro_batch}));
  return std::move(node.mapped());
}

}  // namespace trireme::pipeline
