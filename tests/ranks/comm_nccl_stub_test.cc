// The nccl backend's own part on what stands in for CUDA and NCCL: which calls it makes, in which order, and that none
// waits for another for ever. Whether the calls are right, GPUs alone can show (comm_nccl_test.cc).
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>

#include "tests/ranks/nccl_stub.h"
#include "trireme/base/error.h"
#include "trireme/comm/backends/nccl.h"
#include "trireme/comm/backends/threads.h"

namespace trireme::comm {
namespace {

/// Values in memory that counts as a GPU's.
template <class T>
class Device {
 public:
  explicit Device(const std::vector<T>& values)
      : size_(values.size()), data_(static_cast<T*>(test::stub_alloc(std::max<size_t>(1, size_) * sizeof(T)))) {
    std::copy(values.begin(), values.end(), data_);
  }
  Device(const Device&) = delete;
  ~Device() { test::stub_free(data_); }
  T* data() { return data_; }
  std::vector<T> read() const {
    test::stub_synchronize();
    return {data_, data_ + size_};
  }

 private:
  size_t size_;
  T* data_;
};

/// Runs ranks as threads; yields each one's error, empty where it had none.
std::vector<std::string> run(int ranks, const std::function<void(const Comm&)>& body,
                             std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  auto backends = make_thread_backends(ranks, timeout);
  std::vector<std::string> errors(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      std::unique_ptr<Backend> backend;
      try {
        backend = make_nccl_backend(std::move(backends[r]), r, timeout);
        std::vector<int> all(ranks);
        for (int i = 0; i < ranks; ++i) all[i] = i;
        const Comm comm = backend->make(all, "all");
        body(comm);
        comm.barrier();
      } catch (const base::Error& e) {
        errors[r] = fmt::format("{}: {}", e.kind(), e.what());
        if (backend) backend->abort(e.what());
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

void expect_fine(const std::vector<std::string>& errors) {
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

std::vector<int64_t> values(int64_t count, int rank) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(i % 7 + 10 * rank);
  return out;
}

TEST(NcclStub, CollectivesGiveWhatThoseOfTheHostGive) {
  for (int ranks : {2, 3, 4})
    expect_fine(run(ranks, [&](const Comm& comm) {
      EXPECT_TRUE(comm.takes_device_memory());
      const int me = comm.rank();
      for (int64_t each : {1, 1000}) {
        for (Reduce reduce : {Reduce::sum, Reduce::max}) {
          std::vector<int64_t> host = values(each, me);
          Device<int64_t> there(host);
          comm.all_reduce(host.data(), each, DType::i64, reduce).wait();
          comm.all_reduce(there.data(), each, DType::i64, reduce).wait();
          EXPECT_EQ(there.read(), host);
        }
        std::vector<int64_t> even(ranks, each), uneven;
        for (int r = 0; r < ranks; ++r) uneven.push_back(r == 1 ? 0 : each + r);
        for (const auto& counts : {even, uneven}) {
          int64_t total = 0;
          for (int64_t count : counts) total += count;
          std::vector<int64_t> in = values(total, me), out(counts[me]), all(total);
          Device<int64_t> in_there(in), out_there(out), all_there(all);
          comm.reduce_scatter(in.data(), out.data(), counts, DType::i64).wait();
          comm.reduce_scatter(in_there.data(), out_there.data(), counts, DType::i64).wait();
          EXPECT_EQ(out_there.read(), out);
          comm.all_gather(out.data(), all.data(), counts, DType::i64).wait();
          comm.all_gather(out_there.data(), all_there.data(), counts, DType::i64).wait();
          EXPECT_EQ(all_there.read(), all);
        }
        Device<int64_t> told(values(each, me));
        comm.broadcast(told.data(), each, DType::i64, ranks - 1).wait();
        EXPECT_EQ(told.read(), values(each, ranks - 1));
        // Rank r sends r + s + 1 elements to rank s, but none to itself.
        std::vector<int64_t> sent, received;
        int64_t out_total = 0, in_total = 0;
        for (int r = 0; r < ranks; ++r) {
          sent.push_back(r == me ? 0 : me + r + each);
          received.push_back(r == me ? 0 : me + r + each);
          out_total += sent.back();
          in_total += received.back();
        }
        std::vector<int64_t> from = values(out_total, me), to(in_total);
        Device<int64_t> from_there(from), to_there(to);
        comm.all_to_all(from.data(), sent, to.data(), received, DType::i64).wait();
        comm.all_to_all(from_there.data(), sent, to_there.data(), received, DType::i64).wait();
        EXPECT_EQ(to_there.read(), to);
      }
    }));
}

TEST(NcclStub, MessagesMatchByTagWhateverTheirOrder) {
  for (int ranks : {2, 3, 4})
    expect_fine(run(ranks, [&](const Comm& comm) {
      comm.connect();
      const int next = (comm.rank() + 1) % ranks, before = (comm.rank() + ranks - 1) % ranks;
      for (int round = 0; round < 5; ++round) {
        std::vector<std::unique_ptr<Device<int64_t>>> sent, received;
        std::vector<Work> sends, receives;
        // Both directions at once, every send before any receive, receives in another order than sends.
        for (int peer : {next, before})
          for (uint64_t tag : {1, 2, 3}) {
            sent.push_back(std::make_unique<Device<int64_t>>(values(100, 10 * comm.rank() + static_cast<int>(tag))));
            sends.push_back(comm.isend(sent.back()->data(), 800, peer, tag + (peer == next ? 0 : 8)));
          }
        for (int peer : {before, next})
          for (uint64_t tag : {3, 1, 2}) {
            received.push_back(std::make_unique<Device<int64_t>>(std::vector<int64_t>(100)));
            receives.push_back(comm.irecv(received.back()->data(), 800, peer, tag + (peer == before ? 0 : 8)));
          }
        // The last ones first.
        for (auto work = receives.rbegin(); work != receives.rend(); ++work) work->wait();
        for (Work& work : sends) work.wait();
        const int tags[] = {3, 1, 2};
        for (size_t i = 0; i < received.size(); ++i)
          EXPECT_EQ(received[i]->read(), values(100, 10 * (i < 3 ? before : next) + tags[i % 3])) << i;
        test::stub_synchronize();
      }
    }));
}

TEST(NcclStub, WhatWasAskedForLaterIsNotLost) {
  expect_fine(run(2, [](const Comm& comm) {
    comm.connect();
    if (comm.rank() == 0) {
      Device<int64_t> a(values(10, 1)), b(values(20, 2));
      Work first = comm.isend(a.data(), 80, 1, 1), second = comm.isend(b.data(), 160, 1, 2);
      first.wait();
      second.wait();
      test::stub_synchronize();
    } else {
      Device<int64_t> a(std::vector<int64_t>(10)), b(std::vector<int64_t>(20));
      comm.irecv(b.data(), 160, 0, 2).wait();
      EXPECT_EQ(b.read(), values(20, 2));
      Work late = comm.irecv(a.data(), 80, 0, 1);
      late.wait();
      EXPECT_EQ(a.read(), values(10, 1));
      EXPECT_TRUE(late.done());
    }
  }));
}

TEST(NcclStub, AMessageOfAnotherSizeIsAnError) {
  const auto errors = run(2, [](const Comm& comm) {
    comm.connect();
    Device<int64_t> data(values(64, 0));
    if (comm.rank() == 0)
      comm.isend(data.data(), 256, 1, 5).wait();
    else
      comm.irecv(data.data(), 128, 0, 5).wait();
    comm.barrier();
    test::stub_synchronize();
  });
  EXPECT_NE(errors[1].find("CommError: a message from rank 0 in group 'all' has 256 bytes where 128"), std::string::npos)
      << errors[1];
}

TEST(NcclStub, APeerThatNeverComesIsNoticed) {
  const auto errors = run(
      3,
      [](const Comm& comm) {
        Device<int64_t> data(values(64, 0));
        if (comm.rank() > 0) {
          Work work = comm.all_reduce(data.data(), 64, DType::i64);
          work.wait();
          test::stub_synchronize();  // as reading a loss does
        }
        comm.barrier();
      },
      std::chrono::seconds(1));
  for (const std::string& error : errors) EXPECT_NE(error.find("CommError"), std::string::npos) << error;
  EXPECT_NE((errors[0] + errors[1] + errors[2]).find("gave up"), std::string::npos) << errors[1];
}

TEST(NcclStub, OnlyNeighboursExchangeMessages) {
  const auto errors = run(4, [](const Comm& comm) {
    comm.connect();
    Device<int64_t> data(values(8, 0));
    if (comm.rank() == 0) comm.isend(data.data(), 64, 2, 1);
  });
  EXPECT_NE(errors[0].find("rank 2 is no neighbour of rank 0"), std::string::npos) << errors[0];
}

}  // namespace
}  // namespace trireme::comm
