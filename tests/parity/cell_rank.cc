// One rank of a parity cell as a process: gpt2_processes_test.cc starts it through the launcher.
//   cell_rank DP TP PP SCHEDULE ZERO SEQUENCE_PARALLEL DTYPE RECOMPUTE_EVERY OPTIMIZER OUT_DIR
#include <cstdio>
#include <cstdlib>

#include "tests/support/gpt2_cell.h"
#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/dist/rendezvous.h"

int main(int argc, char** argv) {
  using namespace trireme;
  try {
    base::check(argc == 11, "expected 10 arguments, got {}", argc - 1);
    test::Cell cell{.dp = std::atoi(argv[1]), .tp = std::atoi(argv[2]), .pp = std::atoi(argv[3]), .schedule = argv[4],
                    .zero = std::atoi(argv[5]), .sequence_parallel = std::atoi(argv[6]) != 0, .dtype = argv[7], .optimizer = argv[9],
                    .recompute_every = std::atoi(argv[8])};
    dist::set_rank_threads(1);
    dist::World world(dist::rendezvous_from_env(std::chrono::seconds(60)));
    test::RankResult result = test::run_rank(cell, world, nullptr, nullptr);
    base::write_file_atomic(fmt::format("{}/{}", argv[10], world.rank()), std::to_string(result.digest));
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
