// A Hugging Face model split in one call, trained in a loop of one's own and saved again:
//   finetune MODEL OUT 2 1 2 oslo    (folder or downloaded name; stages, data ranks, tensor ranks: threads of this
//                                     process; safetensors, bin or oslo)

#include <ATen/ATen.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "trireme/base/error.h"
#include "trireme/train/execute_pipeline.h"
#include "trireme/train/pretrained.h"

using namespace trireme;

constexpr int64_t kRows = 8, kSeq = 12, kMicroBatches = 4;

// This data rank's rows of a global batch of counting tokens; each label is the token that follows.
std::vector<nn::Batch> make_batches(int64_t vocabulary, const dist::DeviceMesh& mesh) {
  const at::Tensor tokens = (at::arange(kRows).unsqueeze(1) + at::arange(kSeq + 1)).remainder(vocabulary);
  std::vector<nn::Batch> batches;
  for (const at::Tensor& rows : tokens.chunk(kMicroBatches)) {
    const at::Tensor own = rows.tensor_split(mesh.dp.size())[mesh.dp.rank()];
    nn::State fields{{"input_ids", own.narrow(1, 0, kSeq)}, {"labels", own.narrow(1, 1, kSeq)}};
    batches.push_back({.tensors = fields, .samples = own.select(1, 0).contiguous(), .rows = own.size(0), .seq = kSeq});
  }
  return batches;
}

int main(int argc, char** argv) {
  if (argc != 7) {
    std::fprintf(stderr, "usage: finetune MODEL OUT STAGES DATA_RANKS TENSOR_RANKS safetensors|bin|oslo\n");
    return 2;
  }
  const int pp = std::atoi(argv[3]), dp = std::atoi(argv[4]), tp = std::atoi(argv[5]);
  const std::string format = argv[6];
  try {
    dist::run_ranks(pp * dp * tp, [&](dist::World& world) {
      train::ParallelModel model = train::from_pretrained(
          argv[1], {.tensor_parallel_size = tp, .pipeline_parallel_size = pp, .micro_batches = kMicroBatches}, world);
      train::Assembly& own = *model.assembly;
      optim::ShardedOptimizer optimizer(world, own.mesh, own.model->store, {.lr = 1e-3}, /*zero_stage=*/0);
      pipeline::Executor executor(own.schedule, *own.model, own.mesh, model.stage);
      for (uint64_t step = 0; step < 10; ++step) {
        const auto batches = make_batches(own.model->def.vocab_size, own.mesh);
        const double loss = train::execute_pipeline(executor, optimizer, batches, {.seed = 1, .step = step}).loss();
        optimizer.step(1e-3);
        if (world.rank() == 0) std::printf("step %d  loss %.5f\n", static_cast<int>(step), loss);
      }
      train::save_pretrained(model, argv[2], world,
                             format == "oslo"  ? train::SaveFormat::oslo
                             : format == "bin" ? train::SaveFormat::bin
                                               : train::SaveFormat::safetensors);
    });
  } catch (const base::Error& error) {
    std::fprintf(stderr, "finetune: %s\n", error.what());
    return error.exit_code();
  }
  return 0;
}
