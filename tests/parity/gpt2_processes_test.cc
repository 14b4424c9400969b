// Cells of the parity grid with ranks as processes, on one host and on two: bit-equal to ranks as threads.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include "tests/support/gpt2_cell.h"
#include "tests/support/start_ranks.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/io.h"

namespace trireme::test {
namespace {

/// Of four ranks each; in the full suite every axis of the grid takes each of its values.
std::vector<Cell> cells() {
  std::vector<Cell> all = {{.dp = 2, .pp = 2, .zero = 2, .dtype = "fp32"},
                           {.tp = 2, .pp = 2, .schedule = "gpipe", .sequence_parallel = true, .dtype = "fp32"},
                           {.dp = 2, .tp = 2, .zero = 3, .dtype = "fp32"}};
  if (!std::getenv("TRIREME_FULL")) return all;
  all.insert(all.end(), {{.dp = 4, .zero = 1, .dtype = "fp32", .optimizer = "lamb"},
                         {.tp = 4, .sequence_parallel = true, .dtype = "bf16", .recompute_every = 1},
                         {.pp = 4, .schedule = "zb-2p", .dtype = "fp32"},
                         {.dp = 2, .pp = 2, .schedule = "zb-v", .zero = 1, .dtype = "bf16"},
                         {.tp = 2, .pp = 2, .schedule = "zb-h1", .dtype = "fp64", .optimizer = "muon", .recompute_every = 2},
                         {.dp = 2, .pp = 2, .schedule = "interleaved", .dtype = "fp32", .optimizer = "adafactor"},
                         {.tp = 2, .pp = 2, .schedule = "v-half", .dtype = "fp32"},
                         {.dp = 2, .pp = 2, .schedule = "v-min", .zero = 2, .dtype = "fp32"},
                         {.dp = 2, .tp = 2, .zero = 3, .sequence_parallel = true, .dtype = "bf16", .recompute_every = 1}});
  return all;
}

/// Runs each cell's ranks as processes, with `start` given the words of cell_rank, and compares what they came to.
void expect_equal_to_threads(const std::function<int(const Cell&, const Words&)>& start) {
  for (const Cell& cell : cells()) {
    TemporaryFolder temporary;
    std::string folder = temporary.path();
    auto text = [](int value) { return std::to_string(value); };
    int code = start(cell, {TRIREME_CELL_RANK, text(cell.dp), text(cell.tp), text(cell.pp), cell.schedule,
                            text(cell.zero), text(cell.sequence_parallel), cell.dtype,
                            text(cell.recompute_every), cell.optimizer, folder});
    ASSERT_EQ(code, 0) << cell.name();
    std::vector<uint64_t> threads = run_cell(cell).digests;
    for (int rank = 0; rank < cell.ranks(); ++rank)
      EXPECT_EQ(base::read_file(folder + "/" + text(rank)), std::to_string(threads[rank])) << cell.name();
  }
}

TEST(Gpt2Processes, EqualThreadsBitForBit) {
  expect_equal_to_threads([](const Cell& cell, const Words& words) { return start_on_one_host(cell.ranks(), words); });
}

TEST(Gpt2Processes, EqualThreadsOnTwoHosts) {
  expect_equal_to_threads([](const Cell& cell, const Words& words) { return start_on_two_hosts(cell.ranks(), words); });
}

TEST(Gpt2Processes, EqualThreadsUnderMpirun) {
  if (!has_mpirun()) GTEST_SKIP() << "trireme is built without MPI";
  expect_equal_to_threads([](const Cell&, const Words& words) { return start_under_mpirun(words); });
}

}  // namespace
}  // namespace trireme::test
