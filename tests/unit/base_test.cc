#include <gtest/gtest.h>

#include "trireme/base/philox.h"
#include "trireme/base/threads.h"

namespace trireme::base {
namespace {

// Known answers of Random123's kat_vectors for philox4x32-10.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox(0, {0, 0, 0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~uint64_t{0}, {~0u, ~0u, ~0u, ~0u}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(ParallelFor, RethrowsTheErrorOfTheLowestIndex) {
  std::vector<int> seen(100);
  parallel_for(100, 4, [&](int64_t i) { seen[i] = 1; });
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), 100);
  EXPECT_THROW(parallel_for(10, 3, [](int64_t i) { if (i == 4) throw std::runtime_error("four"); }),
               std::runtime_error);
}

}  // namespace
}  // namespace trireme::base
