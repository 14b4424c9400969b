// Cells of the parity grid with ranks as processes over shared memory: bit-equal to ranks as threads.
#include <gtest/gtest.h>

#include "tests/support/gpt2_cell.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/io.h"
#include "trireme/comm/launch.h"

namespace trireme::test {
namespace {

TEST(Gpt2Processes, EqualThreadsBitForBit) {
  for (const Cell& cell : {Cell{.dp = 2, .tp = 1, .pp = 2, .zero = 1, .dtype = "fp32"},
                           Cell{.dp = 1, .tp = 2, .pp = 2, .schedule = "gpipe", .sequence_parallel = true, .dtype = "fp32"},
                           Cell{.dp = 2, .tp = 2, .pp = 1, .dtype = "fp32"}}) {
    TemporaryFolder temporary;
    std::string folder = temporary.path();
    auto text = [](int value) { return std::to_string(value); };
    int code = comm::launch_local({.nproc = cell.ranks(), .prefix = false},
                                  {TRIREME_CELL_RANK, text(cell.dp), text(cell.tp), text(cell.pp), cell.schedule,
                                   text(cell.zero), text(cell.sequence_parallel), folder});
    ASSERT_EQ(code, 0) << cell.name();
    std::vector<uint64_t> threads = run_cell(cell).digests;
    for (int rank = 0; rank < cell.ranks(); ++rank)
      EXPECT_EQ(base::read_file(folder + "/" + text(rank)), std::to_string(threads[rank])) << cell.name();
  }
}

}  // namespace
}  // namespace trireme::test
