// The collectives on the memory of GPUs against the same ones on the host's. Needs several GPUs and NCCL; says so
// where they are not there.
#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/comm/backends/nccl.h"
#include "trireme/dist/device.h"
#include "trireme/dist/redistribute.h"
#include "trireme/dist/world.h"

namespace trireme::dist {
namespace {

using comm::Comm, comm::Reduce, comm::Work;

class Nccl : public testing::Test {
 protected:
  void SetUp() override {
    if (comm::nccl_version().empty()) GTEST_SKIP() << "trireme is built without NCCL";
    const int there = c10::impl::hasDeviceGuardImpl(c10::kCUDA) ? c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount() : 0;
    if (there < 2) GTEST_SKIP() << there << " GPUs here, the collectives need 2 or more";
    ranks_ = std::min(there, 4);
  }
  /// Runs on all ranks with their group.
  void run(const std::function<void(const Comm&, c10::Device)>& body, std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
    run_ranks(
        ranks_,
        [&](World& world) {
          std::vector<int> all(ranks_);
          for (int r = 0; r < ranks_; ++r) all[r] = r;
          body(world.comm(all, "all"), world.device());
        },
        1, timeout, "cuda");
  }
  int ranks_ = 0;
};

at::Tensor values(int64_t count, int rank, at::ScalarType type) {
  return (at::arange(count, at::kLong) % 7 + rank).to(type);
}

/// The bytes of each rank's part of `total`.
std::vector<int64_t> uneven(int ranks, int64_t each) {
  std::vector<int64_t> counts;
  for (int r = 0; r < ranks; ++r) counts.push_back(r == 1 ? 0 : each + r);
  return counts;
}

TEST_F(Nccl, CollectivesGiveWhatThoseOfTheHostGive) {
  run([&](const Comm& comm, c10::Device device) {
    ASSERT_TRUE(comm.takes_device_memory());
    for (at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kLong, at::kInt})
      for (int64_t each : {1, 1000, 300000}) {
        for (Reduce reduce : {Reduce::sum, Reduce::max}) {
          at::Tensor host = values(each, comm.rank(), type), there = host.to(device);
          comm.all_reduce(pointer(host, comm), each, dtype_of(host), reduce).wait();
          comm.all_reduce(pointer(there, comm), each, dtype_of(host), reduce).wait();
          EXPECT_TRUE(at::equal(to_host(there), host)) << "all_reduce of " << each << at::toString(type);
        }
        for (const std::vector<int64_t>& counts : {std::vector<int64_t>(ranks_, each), uneven(ranks_, each)}) {
          int64_t total = 0;
          for (int64_t count : counts) total += count;
          const int64_t own = counts[comm.rank()];
          at::Tensor in = values(total, comm.rank(), type), out = at::zeros({own}, type);
          at::Tensor in_there = in.to(device), out_there = at::zeros({own}, in_there.options());
          comm.reduce_scatter(pointer(in, comm), pointer(out, comm), counts, dtype_of(in)).wait();
          comm.reduce_scatter(pointer(in_there, comm), pointer(out_there, comm), counts, dtype_of(in)).wait();
          EXPECT_TRUE(at::equal(to_host(out_there), out)) << "reduce_scatter of " << total;
          comm.all_gather(pointer(out, comm), pointer(in, comm), counts, dtype_of(in)).wait();
          comm.all_gather(pointer(out_there, comm), pointer(in_there, comm), counts, dtype_of(in)).wait();
          EXPECT_TRUE(at::equal(to_host(in_there), in)) << "all_gather of " << total;
        }
        at::Tensor host = values(each, comm.rank(), type), there = host.to(device);
        comm.broadcast(pointer(there, comm), each, dtype_of(host), ranks_ - 1).wait();
        EXPECT_TRUE(at::equal(to_host(there), values(each, ranks_ - 1, type)));
        const std::vector<int64_t> counts(ranks_, each);
        at::Tensor all = values(each * ranks_, comm.rank(), type), out = at::zeros_like(all);
        at::Tensor all_there = all.to(device), out_there = at::zeros_like(all_there);
        comm.all_to_all(pointer(all, comm), counts, pointer(out, comm), counts, dtype_of(all)).wait();
        comm.all_to_all(pointer(all_there, comm), counts, pointer(out_there, comm), counts, dtype_of(all)).wait();
        EXPECT_TRUE(at::equal(to_host(out_there), out));
      }
  });
}

TEST_F(Nccl, MessagesMatchByTagWhateverTheirOrder) {
  run([&](const Comm& comm, c10::Device device) {
    comm.connect();
    const int next = (comm.rank() + 1) % ranks_, before = (comm.rank() + ranks_ - 1) % ranks_;
    std::vector<at::Tensor> sent, received;
    std::vector<Work> sends, receives;
    for (uint64_t tag : {1, 2, 3}) {
      sent.push_back(at::full({1 << 20}, static_cast<double>(10 * comm.rank() + static_cast<int>(tag)),
                              at::TensorOptions(at::kFloat).device(device)));
      sends.push_back(comm.isend(pointer(sent.back(), comm), 4 << 20, next, tag));
    }
    for (uint64_t tag : {3, 1, 2}) {
      received.push_back(at::zeros_like(sent[0]));
      receives.push_back(comm.irecv(pointer(received.back(), comm), 4 << 20, before, tag));
    }
    for (Work& work : receives) work.wait();
    for (Work& work : sends) work.wait();
    const double expected[] = {3, 1, 2};
    for (size_t i = 0; i < received.size(); ++i)
      EXPECT_EQ(to_host(received[i])[12345].item<double>(), 10 * before + expected[i]);
  });
}

TEST_F(Nccl, AMessageOfAnotherSizeIsAnError) {
  EXPECT_THROW(run([&](const Comm& comm, c10::Device device) {
                 comm.connect();
                 at::Tensor data = at::zeros({64}, at::TensorOptions(at::kFloat).device(device));
                 if (comm.rank() == 0) comm.isend(pointer(data, comm), 256, 1, 5).wait();
                 if (comm.rank() == 1) comm.irecv(pointer(data, comm), 128, 0, 5).wait();
                 comm.barrier();
               }),
               base::CommError);
}

TEST_F(Nccl, APeerThatNeverComesIsNoticed) {
  EXPECT_THROW(run(
                   [&](const Comm& comm, c10::Device device) {
                     at::Tensor data = at::zeros({64}, at::TensorOptions(at::kFloat).device(device));
                     if (comm.rank() > 0) comm.all_reduce(pointer(data, comm), 64, comm::DType::f32).wait();
                     synchronize(device);
                     comm.barrier();
                   },
                   std::chrono::seconds(3)),
               base::CommError);
}

}  // namespace
}  // namespace trireme::dist
