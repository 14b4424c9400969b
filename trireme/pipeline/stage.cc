#include "trireme/pipeline/stage.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "trireme/base/error.h"

namespace trireme::pipeline {

namespace {

/// The same tensors without their graph; those that carry a gradient become leaves when `grad` is
/// on.
nn::State cut(const nn::State& state, bool grad) {
  nn::State leaves;
  for (const auto& [name, tensor] : state.tensors()) {
    at::Tensor leaf = tensor.detach();
    if (grad && tensor.requires_grad()) leaf.requires_grad_(true);
    leaves.set(name, std::move(leaf));
  }
  return leaves;
}

nn::State gradients_of(const nn::State& leaves) {
  nn::State gradients;
  for (const auto& [name, leaf] : leaves.tensors())
    if (leaf.requires_grad() && leaf.grad().defined()) gradients.set(name, leaf.grad());
  return gradients;
}

}  // namespace

Stage::Stage(nn::Model& model, const dist::DeviceMesh& mesh, const StageOptions& options,
             StepObserver* observer)
    : model_(model),
      mesh_(mesh),
      options_(options),
      observer_(observer),
      anchor_(at::zeros({}).requires_grad_(true)) {}

void Stage::begin_step(int64_t micro_batches) {
  slots_.clear();
  model_.store.begin_step(micro_batches);
}

void Stage::end_step(bool trained) {
  if (observer_) observer_->end_step();
  base::check(slots_.empty(), "{} micro-batches were left without a backward pass", slots_.size());
  if (trained) model_.store.audit();
}

nn::State Stage::forward(int chunk, int micro_batch, nn::State in, const nn::Context& context,
                         Keep keep) {
  const size_t count = model_.chunks[chunk].size();
  if (keep == Keep::nothing) {
    at::NoGradGuard no_grad;
    nn::Context own = context;
    own.anchor = anchor_;
    for (size_t i = 0; i < count; ++i) in = run_layer(chunk, i, in, own);
    return in;
  }

  auto [entry, added] =
      slots_.try_emplace({chunk, micro_batch}, Slot{.context = context, .keep = keep});
  base::check(added, "micro-batch {} is in chunk {} already", micro_batch, chunk);
  Slot& slot = entry->second;
  slot.context.anchor = anchor_;
  slot.context.recompute_attention = options_.recompute_attention;
  slot.weights.resize(keep == Keep::split_weights ? count : 0);
  for (size_t i = 0; i < count; ++i) {
    slot.context.weight_queue = slot.weights.empty() ? nullptr : &slot.weights[i];
    Segment& segment = slot.layers.emplace_back();
    segment.in = cut(in, true);
    segment.waits = waits(chunk, i, context, keep);
    if (segment.waits) return {};
    segment.recompute = recomputes(chunk, i);
    if (segment.recompute) {
      at::NoGradGuard no_grad;
      in = run_layer(chunk, i, segment.in, slot.context);
      // Without a graph the layer's description says which tensors carry a gradient.
      for (const nn::TensorSpec& spec :
           model_.entering(model_.layer_indices[chunk][i] + 1, context.batch.shape()))
        if (spec.requires_grad) in.set(spec.name, in.at(spec.name).detach().requires_grad_(true));
    } else {
      in = segment.out = run_layer(chunk, i, segment.in, slot.context);
    }
  }
  // The caller sees which tensors carry a gradient, but no graph.
  return cut(in, true);
}

at::Tensor Stage::loss(int chunk, int micro_batch, const nn::State& out,
                       const nn::Context& context) {
  auto entry = slots_.find({chunk, micro_batch});
  if (entry == slots_.end()) {
    at::NoGradGuard no_grad;
    return model_.def.loss(out, context.batch, mesh_.tp);
  }
  Slot& slot = entry->second;
  if (slot.layers.back().waits) return {};
  slot.loss_in = cut(out, true);
  slot.loss = model_.def.loss(slot.loss_in, context.batch, mesh_.tp);
  return slot.loss.detach();
}

nn::State Stage::loss_gradients(int chunk, int micro_batch, const std::vector<double>& weights, at::Tensor& loss) {
  Slot& slot = this->slot(chunk, micro_batch);
  if (Segment& segment = slot.layers.back(); segment.waits) {
    const size_t last = slot.layers.size() - 1;
    before(chunk, last, Pass::backward);
    slot.context.weight_queue = nullptr;
    slot.context.loss_request = {.factor = weights[0]};
    segment.out = model_.chunks[chunk][last]->forward(segment.in, slot.context);
    slot.loss_in = cut(segment.out, true);
    slot.loss = model_.def.loss(slot.loss_in, slot.context.batch, mesh_.tp);
    loss = slot.loss.detach();
  }
  nn::State gradients;
  if (slot.loss.requires_grad()) {
    // The graph hands gradients on as they are; a leaf might copy what may be as large as all
    // logits.
    std::vector<std::string> names;
    std::vector<at::Tensor> leaves;
    for (const auto& [name, leaf] : slot.loss_in.tensors())
      if (leaf.requires_grad()) names.push_back(name), leaves.push_back(leaf);
    const auto found = torch::autograd::grad(
        {slot.loss}, leaves, {at::tensor(weights, at::kDouble).view(slot.loss.sizes()).to(slot.loss.device())}, false, false, true);
    for (size_t i = 0; i < names.size(); ++i)
      if (found[i].defined()) gradients.set(names[i], found[i]);
  }
  slot.loss.reset();
  slot.loss_in = {};
  return gradients;
}

nn::State Stage::backward(int chunk, int micro_batch, nn::State gradients) {
  Slot& slot = this->slot(chunk, micro_batch);
  for (size_t i = slot.layers.size(); i-- > 0; slot.layers.pop_back()) {
    Segment& segment = slot.layers[i];
    const bool split = splits(chunk, i, slot.keep);
    const Pass pass = split ? Pass::inputs : Pass::backward;
    if (!segment.waits) before(chunk, i, pass);
    slot.context.weight_queue = slot.weights.empty() || segment.waits ? nullptr : &slot.weights[i];
    if (segment.recompute) segment.out = model_.chunks[chunk][i]->forward(segment.in, slot.context);
    std::vector<at::Tensor> roots, seeds;
    for (const auto& [name, tensor] : segment.out.tensors()) {
      if (!tensor.requires_grad() || !gradients.has(name)) continue;
      roots.push_back(tensor);
      seeds.push_back(gradients.at(name));
    }
    segment.out = {};
    gradients = {};
    if (!roots.empty()) torch::autograd::backward(roots, seeds);
    gradients = gradients_of(segment.in);
    // Weight gradients that wait would keep what recompute just made.
    if (segment.recompute && !slot.weights.empty()) slot.weights[i].drain();
    after(chunk, i, pass);
  }
  if (slot.keep == Keep::graph) slots_.erase({chunk, micro_batch});
  return gradients;
}

void Stage::weights(int chunk, int micro_batch) {
  Slot& slot = this->slot(chunk, micro_batch);
  for (size_t i = slot.weights.size(); i-- > 0;) {
    if (!splits(chunk, i, slot.keep)) continue;
    before(chunk, i, Pass::weights);
    slot.weights[i].drain();
    after(chunk, i, Pass::weights);
  }
  slots_.erase({chunk, micro_batch});
}

void Stage::pass_over(int chunk, Pass pass, const nn::Context& context, Keep keep) {
  const size_t count = model_.chunks[chunk].size();
  for (size_t k = 0; k < count; ++k) {
    const size_t i = pass == Pass::forward ? k : count - 1 - k;
    const bool split = splits(chunk, i, keep);
    if (pass == Pass::weights && !split) continue;
    if (pass == Pass::forward && waits(chunk, i, context, keep)) continue;
    const Pass own = pass == Pass::backward && split ? Pass::inputs : pass;
    before(chunk, i, own);
    after(chunk, i, own);
  }
}

void Stage::drop(int micro_batch) {
  std::erase_if(slots_, [&](const auto& slot) { return slot.first.second == micro_batch; });
}

Stage::Slot& Stage::slot(int chunk, int micro_batch) {
  auto entry = slots_.find({chunk, micro_batch});
  base::check(entry != slots_.end(), "micro-batch {} is not in chunk {}", micro_batch, chunk);
  return entry->second;
}

nn::State Stage::run_layer(int chunk, size_t index, const nn::State& in,
                           const nn::Context& context) {
  before(chunk, index, Pass::forward);
  nn::State out = model_.chunks[chunk][index]->forward(in, context);
  after(chunk, index, Pass::forward);
  return out;
}

bool Stage::waits(int chunk, size_t index, const nn::Context& context, Keep keep) const {
  return keep == Keep::graph && context.loss_request &&
         model_.layer_indices[chunk][index] + 1 == std::ssize(model_.def.layers);
}

bool Stage::splits(int chunk, size_t index, Keep keep) const {
  return keep == Keep::split_weights && !recomputes(chunk, index);
}

void Stage::before(int chunk, size_t index, Pass pass) {
  if (observer_) observer_->before_layer(model_.layer_indices[chunk][index], pass);
}

void Stage::after(int chunk, size_t index, Pass pass) {
  if (observer_) observer_->after_layer(model_.layer_indices[chunk][index], pass);
}

bool Stage::recomputes(int chunk, size_t index) const {
  const int layer = model_.layer_indices[chunk][index];
  if (options_.recompute_blocks)
    return model_.def.layers[layer].block && blocks_before(layer) < *options_.recompute_blocks;
  return options_.recompute_every > 0 && model_.def.layers[layer].block &&
         layer % options_.recompute_every == 0;
}

int Stage::blocks_before(int layer) const {
  int blocks = 0;
  for (const std::vector<int>& chunk : model_.layer_indices)
    for (int other : chunk) blocks += other < layer && model_.def.layers[other].block;
  return blocks;
}

}  // namespace trireme::pipeline
