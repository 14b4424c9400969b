// GPT-2's logits, loss and gradients against Hugging Face's own numbers (make_hf_gpt2.py), on each
// layout.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/support/shards.h"
#include "trireme/dist/redistribute.h"
#include "trireme/layout/stage_manager.h"
#include "trireme/models/registry.h"
#include "trireme/optim/grad_sync.h"
#include "trireme/pipeline/executor.h"
#include "trireme/schedule/generators.h"

namespace trireme {
namespace {

using layout::Axis;
using layout::Mesh;

constexpr int64_t kRows = 6, kSeq = 19, kVocab = 131;
constexpr int kMicroBatches = 3;

struct Numbers {
  double loss = 0;
  double logits_error = 0;
  test::Tensors gradients;
};

/// Rows of this data rank's micro-batch m: global row (m * dp + rank) * rows + i.
std::vector<nn::Batch> batches_of(const test::Tensors& given, const dist::DeviceMesh& mesh) {
  const int64_t dp = mesh.dp.size(), rows = kRows / kMicroBatches / dp;
  std::vector<nn::Batch> batches;
  for (int64_t m = 0; m < kMicroBatches; ++m) {
    const int64_t first = (m * dp + mesh.dp.rank()) * rows;
    nn::Batch& batch = batches.emplace_back();
    for (const char* name : {"input_ids", "labels"})
      batch.tensors.set(name, given.at(name).narrow(0, first, rows));
    batch.rows = rows;
    batch.seq = kSeq;
    batch.samples = at::arange(first, first + rows, at::kLong);
  }
  return batches;
}

Numbers run(const base::Json& tree, const test::Tensors& weights, const test::Tensors& expected,
            const layout::Coord& sizes, bool sequence_parallel, base::DType dtype) {
  const Mesh mesh_shape(sizes);
  const schedule::Schedule schedule =
      schedule::generate("1f1b", {.ranks = sizes.pp, .micro_batches = kMicroBatches});
  Numbers numbers;
  test::Gathered gathered;
  std::mutex mutex;
  dist::run_ranks(mesh_shape.size(), [&](dist::World& world) {
    dist::DeviceMesh mesh(world, mesh_shape);
    nn::BuildOptions options{.dtype = dtype, .sequence_parallel = sequence_parallel};
    auto model = nn::build_model(models::make_model(tree, sizes.tp), mesh, options,
                                 layout::distribute_layers(4, sizes.pp), schedule.rank_of_chunk);
    model->store.materialize(1, true);
    for (nn::Param* p : model->store.params()) test::scatter(weights.at(p->spec.name), *p, p->data);
    const std::vector<nn::Batch> batches = batches_of(expected, mesh);
    pipeline::Executor executor(schedule, *model, mesh);
    optim::GradSync sync(world, mesh, model->store, 0);
    sync.begin();
    pipeline::StepResult step = executor.run(batches, {}, nn::Mode::train, {.outputs = true});
    sync.finish();
    for (nn::Param* p : model->store.params()) gathered.add("grad." + p->spec.name, *p, p->grad);
    double worst = 0;
    for (size_t m = 0; m < step.outputs.size(); ++m) {
      at::Tensor all = dist::all_gather(step.outputs[m].at("logits"), mesh.tp, 2, kVocab);
      const int64_t first = batches[m].samples[0].item<int64_t>();
      worst = std::max(
          worst, test::error(all, expected.at("logits").narrow(0, first, batches[m].rows), 1));
    }
    std::lock_guard lock(mutex);
    numbers.loss = step.loss();
    numbers.logits_error = std::max(numbers.logits_error, worst);
  });
  numbers.gradients = gathered.take();
  return numbers;
}

TEST(HfGpt2, EveryLayoutGivesHuggingFacesNumbers) {
  const std::string folder = std::string(std::getenv("TRIREME_HF_FIXTURES")) + "/";
  int ran = 0;
  for (std::string variant : {"tied_fp32", "tied_fp64", "untied_relu_fp64"}) {
    const base::Json tree = base::read_json(folder + variant + "/config.json");
    const test::Tensors weights = test::read_tensors(folder + variant + "/model.safetensors");
    const test::Tensors expected = test::read_tensors(folder + variant + "/expected.safetensors");
    test::Tensors want;
    for (auto& [name, tensor] : expected)
      if (name.starts_with("grad.")) want[name] = tensor;
    const bool wide = variant.ends_with("64");
    const double bound = wide ? 1e-9 : 1e-5;
    for (const layout::Coord& sizes : {layout::Coord{.pp = 1, .dp = 1, .tp = 1},
                                       {.pp = 1, .dp = 1, .tp = 2},
                                       {.pp = 1, .dp = 1, .tp = 4},
                                       {.pp = 1, .dp = 2, .tp = 1},
                                       {.pp = 2, .dp = 1, .tp = 1},
                                       {.pp = 4, .dp = 1, .tp = 1},
                                       {.pp = 2, .dp = 1, .tp = 2},
                                       {.pp = 2, .dp = 2, .tp = 2}})
      for (bool sp : {false, true}) {
        if (sp && sizes.tp == 1) continue;
        SCOPED_TRACE(fmt::format("{} pp {} dp {} tp {}{}", variant, sizes.pp, sizes.dp, sizes.tp,
                                 sp ? " sp" : ""));
        Numbers got =
            run(tree, weights, expected, sizes, sp, wide ? base::DType::f64 : base::DType::f32);
        auto worst = test::worst(got.gradients, want);
        EXPECT_LT(worst.error, bound) << worst.name;
        EXPECT_LT(std::abs(got.loss / expected.at("loss").item<double>() - 1), bound);
        EXPECT_LT(got.logits_error, bound);
        ++ran;
      }
  }
  EXPECT_EQ(ran, 3 * 12);
}

}  // namespace
}  // namespace trireme
