#include "tests/support/gpt2_cell.h"

#include <ATen/ATen.h>

#include <bit>
#include <map>

#include "trireme/base/error.h"
#include "trireme/base/hash.h"
#include "trireme/base/philox.h"
#include "trireme/data/batch.h"
#include "trireme/dist/device.h"
#include "trireme/optim/groups.h"
#include "trireme/schedule/generators.h"
#include "trireme/train/execute_pipeline.h"
#include "trireme/train/assembly.h"
#include "trireme/train/run_state.h"

namespace trireme::test {
namespace {

constexpr int64_t kVocab = 131, kSeq = 13, kMicroBatch = 1;

base::Json model_tree(const Cell& cell) {
  return {{"family", "gpt2"}, {"n_layer", 4}, {"n_embd", 32}, {"n_head", 4}, {"n_positions", 16}, {"vocab_size", kVocab},
          {"resid_pdrop", 0.1}, {"embd_pdrop", 0.1}, {"attn_pdrop", 0.1}, {"initializer_range", 0.1},
          {"tie_word_embeddings", cell.tied}};
}

// Sample g of a step: tokens from (step, g, place); g % 7 * 1.5 of the first labels are ignored.
void write_sample(int64_t step, int64_t g, std::vector<int64_t>& ids, std::vector<int64_t>& labels) {
  uint64_t key = base::stream_key(5, "cell", static_cast<uint64_t>(step), static_cast<uint64_t>(g));
  for (int64_t i = 0; i < kSeq; ++i) {
    ids.push_back(static_cast<int64_t>(base::uniform_below(key, i, kVocab)));
    int64_t next = static_cast<int64_t>(base::uniform_below(key, i + 1, kVocab));
    labels.push_back(i < g % 7 * 3 / 2 ? data::kIgnoreLabel : next);
  }
}

std::vector<nn::Batch> batches_of(const Cell& cell, const dist::DeviceMesh& mesh, int64_t step) {
  std::vector<nn::Batch> batches;
  int64_t per_step = kMicroBatch * cell.dp;
  for (int64_t m = 0; m * per_step < cell.global_batch; ++m) {
    data::Batch batch;
    data::Field ids{"input_ids", {0, kSeq}, {}}, labels{"labels", {0, kSeq}, {}};
    for (int64_t i = 0; i < kMicroBatch; ++i) {
      int64_t g = m * per_step + mesh.coord.dp * kMicroBatch + i;
      if (g >= cell.global_batch) continue;
      write_sample(step, g, ids.values, labels.values);
      batch.samples.push_back(g);
    }
    ids.shape[0] = labels.shape[0] = batch.rows();
    batch.fields = {ids, labels};
    batches.push_back(nn::to_tensors(batch, mesh.device));
  }
  return batches;
}

// Samples that data rank `rank` of an evenly shared axis alone has: where a fault is planted.
void plant_before(Fault fault, const dist::DeviceMesh& mesh, std::vector<nn::Batch>& batches) {
  bool last_stage = mesh.coord.pp == mesh.mesh.size(layout::Axis::pp) - 1;
  if (fault == Fault::swapped_micro_batches && last_stage) std::swap(batches[1], batches[2]);
  if (fault == Fault::shifted_dropout && mesh.coord.dp == 1)
    for (nn::Batch& batch : batches) batch.samples = batch.samples + 1;
}

// The run's observer with a fault in its second layer.
class Saboteur : public pipeline::StepObserver {
 public:
  Saboteur(pipeline::StepObserver& inner, nn::ParamStore& store, Fault fault) : inner_(inner), store_(store), fault_(fault) {}
  void before_layer(int layer, pipeline::Pass pass) override {
    inner_.before_layer(layer, pass);
    if (layer != 1 || fault_ != Fault::stale_gather) return;
    for (nn::Bucket* bucket : store_.buckets_of(layer)) {
      auto [first, added] = first_.try_emplace(bucket);
      if (added) first->second = bucket->data.clone();
      bucket->data.copy_(first->second);
    }
  }
  void after_layer(int layer, pipeline::Pass pass) override {
    if (layer == 1 && fault_ == Fault::dropped_scatter && pipeline::contributes(pass) && ++passes_ == 2)
      for (nn::Bucket* bucket : store_.buckets_of(layer)) bucket->grad.zero_();
    inner_.after_layer(layer, pass);
  }
  void end_step() override { inner_.end_step(); }

 private:
  pipeline::StepObserver& inner_;
  nn::ParamStore& store_;
  Fault fault_;
  int passes_ = 0;
  std::map<nn::Bucket*, at::Tensor> first_;
};

uint64_t digest_of(uint64_t digest, const at::Tensor& tensor) {
  at::Tensor bytes = dist::to_host(tensor);
  return base::hash_combine(digest, base::hash_bytes(bytes.data_ptr(), bytes.nbytes()));
}

}  // namespace

std::string Cell::name() const {
  return fmt::format("dp{} tp{} pp{} {} zero{}{} {} {}{} batch{}{}{}", dp, tp, pp, schedule, zero, sequence_parallel ? " sp" : "",
                     dtype, optimizer, tied ? "" : " untied", global_batch,
                     recompute_every ? fmt::format(" recompute{}", recompute_every) : recompute_attention ? " selective" : "",
                     (fuse ? "" : " plain") + (steps == 3 ? "" : fmt::format(" {} steps", steps)) +
                         (groups.empty() ? "" : fmt::format(" {} groups from {}", groups.size(), groups[0].pattern)));
}

RankResult run_rank(const Cell& cell, dist::World& world, Gathered* gradients, Gathered* parameters, Fault fault) {
  auto micro_batches = static_cast<int>((cell.global_batch + cell.dp * kMicroBatch - 1) / (cell.dp * kMicroBatch));
  train::Placement placement{
      .mesh = layout::Mesh({.pp = cell.pp, .dp = cell.dp, .tp = cell.tp}),
      .schedule = schedule::generate(cell.schedule, {.ranks = cell.pp, .micro_batches = micro_batches, .search = 1000}),
      .options = {.dtype = base::dtype_of(cell.dtype), .sequence_parallel = cell.sequence_parallel, .seed = 11, .fuse = cell.fuse}};
  auto run = train::assemble(model_tree(cell), placement, kSeq, world);
  config::Optim options;
  options.name = cell.optimizer == "nesterov" ? "sgd" : cell.optimizer;
  options.nesterov = options.name == "sgd" ? std::optional(cell.optimizer == "nesterov") : std::nullopt;
  options.groups = cell.groups;
  options.lr = kCellLr;
  options.eps = 1e-4;
  options.weight_decay = 0.1;
  if (options.name == "sgd") options.momentum = 0.9;
  options.clip_grad_max_norm = 1.0;
  options.offload = cell.offload;
  optim::freeze(run->model->store, options);
  train::make_parameters(*run, true, nullptr, cell.zero);
  nn::ParamStore& store = run->model->store;
  optim::ShardedOptimizer optimizer(world, run->mesh, store, options, cell.zero);
  train::fill_masters(*run, optimizer, nullptr);
  train::OverlappedSync overlap(optimizer.sync(), run->parameters.get());
  Saboteur saboteur(overlap, store, fault);
  // A planted fault in the exchange needs it apart from the backward pass.
  bool apart = fault == Fault::dropped_reduce || fault == Fault::doubled_tie;
  if (fault == Fault::wrong_loss_scale && run->mesh.coord.dp == 1) {
    auto count = run->model->def.loss_weight;
    run->model->def.loss_weight = [count](const nn::Batch& batch) { return 2 * count(batch)[0]; };
  }
  pipeline::Executor executor(run->schedule, *run->model, run->mesh, {.recompute_every = cell.recompute_every, .recompute_blocks = cell.recompute_blocks, .recompute_attention = cell.recompute_attention},
                              apart ? nullptr : &saboteur);

  RankResult result;
  uint64_t digest = 0;
  for (int64_t step = 0; step < cell.steps; ++step) {
    std::vector<nn::Batch> batches = batches_of(cell, run->mesh, step);
    plant_before(fault, run->mesh, batches);
    pipeline::StepResult done =
        train::execute_pipeline(executor, optimizer, batches, {.seed = 3, .step = static_cast<uint64_t>(step)},
                                {.loss_scale = cell.loss_scale});
    if (fault == Fault::dropped_reduce && run->mesh.coord.dp == 1) store.buckets()[0].grad.zero_();
    if (nn::Param* tied = store.find("transformer.wte.weight"); tied && fault == Fault::doubled_tie) tied->grad.mul_(2);
    optim::StepReport report = optimizer.step(kCellLr, {.loss_scale = cell.loss_scale});
    result.losses.push_back(done.loss());
    digest = base::hash_combine(digest, std::bit_cast<uint64_t>(done.loss()));
    if (step == 0) {
      result.grad_norm = report.grad_norm;
      optimizer.sync().gather();
      for (nn::Param* p : store.params()) {
        if (p->frozen) continue;
        p->grad.div_(cell.loss_scale);
        if (gradients) gradients->add(p->spec.name, *p, p->grad);
        digest = digest_of(digest, p->grad);
      }
    }
  }
  run->parameters->gather_all();
  for (nn::Param* p : store.params()) digest = digest_of(digest, p->data);
  const std::vector<nn::TensorPart> masters = optimizer.masters();
  for (const nn::TensorPart& part : masters) digest = digest_of(digest, part.data);
  if (parameters) {
    for (const nn::TensorPart& part : masters) parameters->add(part);
    for (nn::Param* p : store.params())
      if (masters.empty() || p->frozen)
        parameters->add(p->spec.name, *p, p->data);
  }
  result.digest = digest;
  return result;
}

CellResult run_cell(const Cell& cell, Fault fault, const RunRanks& run) {
  CellResult result;
  result.digests.resize(cell.ranks());
  Gathered gradients, parameters;
  run(cell.ranks(), [&](dist::World& world) {
    RankResult rank = run_rank(cell, world, &gradients, &parameters, fault);
    result.digests[world.rank()] = rank.digest;
    if (world.rank() == 0) result.losses = rank.losses, result.grad_norm = rank.grad_norm;
  });
  result.gradients = gradients.take();
  result.parameters = parameters.take();
  return result;
}

}  // namespace trireme::test
