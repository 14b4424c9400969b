#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "trireme/kernels/allocator.h"

namespace trireme::kernels {
namespace {

class Allocator : public testing::Test {
 protected:
  void SetUp() override { install_caching_allocator(); }
};

int64_t resident_bytes() {
  int64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST_F(Allocator, CountsRequestedBytesOfARankExactly) {
  std::thread([] {
    tag_memory(1000);
    EXPECT_EQ(memory_counters().live, 0);
    at::Tensor a = at::empty({1000}, at::kFloat);
    EXPECT_EQ(memory_counters().live, 4000);
    {
      at::Tensor b = at::empty({3, 7}, at::kDouble);
      EXPECT_EQ(memory_counters().live, 4168);
    }
    EXPECT_EQ(memory_counters().live, 4000);
    EXPECT_EQ(memory_counters().peak, 4168);
    reset_peak();
    EXPECT_EQ(memory_counters().peak, 4000);
    at::Tensor empty = at::empty({0}, at::kFloat);
    EXPECT_EQ(memory_counters().live, 4000);
  }).join();
}

TEST_F(Allocator, AFreeOnAnotherThreadCountsForTheOwner) {
  at::Tensor moved;
  std::thread([&] {
    tag_memory(1001);
    moved = at::empty({100}, at::kByte);
  }).join();
  std::thread([&] {
    tag_memory(1002);
    moved.reset();
    EXPECT_EQ(memory_counters().live, 0);
  }).join();
  std::thread([&] {
    tag_memory(1001);
    EXPECT_EQ(memory_counters().live, 0);
    EXPECT_EQ(memory_counters().peak, 100);
  }).join();
}

TEST_F(Allocator, DataIsAlignedAndBlocksDoNotOverlap) {
  std::vector<at::Tensor> tensors;
  for (int64_t size = 1; size < (int64_t{1} << 23); size = size * 9 / 7 + 1) {
    tensors.push_back(at::full({size}, static_cast<int64_t>(tensors.size()), at::kByte));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensors.back().data_ptr()) % 64, 0u) << size;
  }
  for (size_t i = 0; i < tensors.size(); ++i)
    EXPECT_TRUE(tensors[i].eq(static_cast<int64_t>(i)).all().item<bool>()) << tensors[i].numel();
}

TEST_F(Allocator, ReusesFreedBlocksAndTrims) {
  trim_memory();
  constexpr int64_t kBytes = int64_t{64} << 20;
  const int64_t before = resident_bytes();
  void* first = nullptr;
  {
    at::Tensor a = at::ones({kBytes}, at::kByte);
    first = a.data_ptr();
  }
  EXPECT_GT(resident_bytes(), before + kBytes / 2);
  EXPECT_EQ(at::empty({kBytes}, at::kByte).data_ptr(), first);
  EXPECT_EQ(at::empty({kBytes * 15 / 16}, at::kByte).data_ptr(), first);  // close enough
  trim_memory();
  EXPECT_LT(resident_bytes(), before + kBytes / 2);
}

TEST_F(Allocator, ThreadsAllocateAndFreeSideBySide) {
  constexpr int kThreads = 6;
  const int64_t process_before = memory_counters().live;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([t] {
      tag_memory(2000 + t);
      std::vector<at::Tensor> kept(16);
      uint64_t state = t + 1;
      for (int i = 0; i < 20000; ++i) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        at::Tensor& slot = kept[state >> 60];
        if (slot.defined()) {
          ASSERT_EQ(slot.data_ptr<uint8_t>()[0], static_cast<uint8_t>(t));
          ASSERT_EQ(slot.data_ptr<uint8_t>()[slot.numel() - 1], static_cast<uint8_t>(t));
        }
        slot = at::empty({static_cast<int64_t>((state >> 40) % 5000 + 1)}, at::kByte);
        slot.data_ptr<uint8_t>()[0] = slot.data_ptr<uint8_t>()[slot.numel() - 1] =
            static_cast<uint8_t>(t);
      }
      int64_t live = 0;
      for (const at::Tensor& tensor : kept)
        if (tensor.defined()) live += tensor.numel();
      EXPECT_EQ(memory_counters().live, live);
      kept.clear();
      EXPECT_EQ(memory_counters().live, 0);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(memory_counters().live, process_before);
}

}  // namespace
}  // namespace trireme::kernels
