// One rank of the chain of pipeline_support.h as a process, on as many stages as there are ranks: pipeline_test.cc starts
// it through the launchers. Writes the step's loss and the sum of its gradients to OUT_DIR/RANK.
//   chain_rank SCHEDULE MICRO_BATCHES OUT_DIR
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#include "tests/ranks/pipeline_support.h"
#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/dist/rendezvous.h"
#include "trireme/layout/stage_manager.h"

int main(int argc, char** argv) {
  using namespace trireme;
  using namespace trireme::pipeline;
  try {
    base::check(argc == 4, "expected 3 arguments, got {}", argc - 1);
    const int micro_batches = std::atoi(argv[2]);
    dist::set_rank_threads(1);
    dist::World world(dist::rendezvous_from_env(std::chrono::seconds(60)));
    const dist::DeviceMesh mesh(world, layout::Mesh({.pp = world.size(), .dp = 1, .tp = 1}));
    const auto schedule =
        schedule::generate(argv[1], {.ranks = world.size(), .micro_batches = micro_batches, .search = 1000});
    auto model = nn::build_model(testing::chain(), mesh, {.dtype = base::DType::f64},
                                 layout::distribute_layers(8, schedule.chunks), schedule.rank_of_chunk);
    model->store.materialize(3, true);
    Executor executor(schedule, *model, mesh);
    const StepResult result =
        executor.run(testing::make_batches(micro_batches, 2), {.seed = 5, .step = 2}, nn::Mode::train);
    double gradients = 0;
    for (const nn::Param* param : model->store.params()) gradients += param->grad.sum().item<double>();
    base::write_file_atomic(fmt::format("{}/{}", argv[3], world.rank()), fmt::format("{:a} {:a}", result.loss(), gradients));
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
