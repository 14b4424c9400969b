// Messages, groups, asynchrony, deadlines, disagreement, abort.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstring>
#include <numeric>
#include <thread>

#include "tests/ranks/comm_support.h"
#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;

std::vector<int64_t> pattern(int64_t count, int64_t seed) {
  std::vector<int64_t> values(count);
  std::iota(values.begin(), values.end(), seed * 1000003);
  return values;
}

TEST_P(CommTest, MessagesMatchByTagInOrder) {
  expect_clean(run(3, [](Backend& backend) {
    Comm comm = world(backend);
    if (comm.rank() == 0) {
      for (int64_t i = 0; i < 100; ++i) comm.isend(&i, sizeof i, 1, i % 5);  // sent without waiting
      for (int64_t i = 0; i < 3; ++i) comm.isend(&i, sizeof i, 2, 9);
    } else if (comm.rank() == 1) {
      for (int64_t tag = 4; tag >= 0; --tag)  // the tags in another order than sent
        for (int64_t k = 0; k < 20; ++k) {
          int64_t got = -1;
          comm.irecv(&got, sizeof got, 0, tag).wait();
          require(got == 5 * k + tag, fmt::format("tag {} message {}: got {}", tag, k, got));
        }
    } else {
      int64_t got[3];
      Work works[3];
      for (int i = 0; i < 3; ++i)
        works[i] = comm.irecv(&got[i], sizeof got[i], 0, 9);  // posted ahead
      for (int i = 2; i >= 0; --i) works[i].wait();
      require(got[0] == 0 && got[1] == 1 && got[2] == 2, "order of equal tags");
    }
  }));
}

TEST_P(CommTest, SendsNeverBlockWhateverTheSize) {
  expect_clean(run(2, [](Backend& backend) {
    Comm comm = world(backend);
    int peer = 1 - comm.rank();
    // Both send everything before either receives.
    std::vector<int64_t> sizes{0, 1, 1000, 8192, 100'000, kThreadSanitizer ? 300'000 : 9'000'000};
    std::vector<std::vector<int64_t>> out;
    std::vector<SharedBuffer> shared;
    std::vector<Work> sends;
    for (int64_t size : sizes) {
      out.push_back(pattern(size, comm.rank() + size));
      shared.push_back(comm.alloc(size * 8));
      if (size > 0) std::memcpy(shared.back().data(), out.back().data(), size * 8);
      sends.push_back(comm.isend(out.back().data(), size * 8, peer, 1));
      sends.push_back(comm.isend(shared.back().data(), size * 8, peer, 2));
    }
    for (int64_t size : sizes)
      for (uint64_t tag : {1, 2}) {
        std::vector<int64_t> in(size);
        comm.irecv(in.data(), size * 8, peer, tag).wait();
        require(in == pattern(size, peer + size), fmt::format("{} values with tag {}", size, tag));
      }
    for (Work& send : sends) send.wait();
  }));
}

// The sender is done with a plain buffer although the receiver has not called yet.
TEST(Comm, ASendOfPlainMemoryBetweenProcessesCompletesAlone) {
  if (kThreadSanitizer || under_mpirun()) GTEST_SKIP() << kNoFork;
  expect_clean(run_ranks(Kind::processes, 2, [](Backend& backend) {
    Comm comm = world(backend);
    if (comm.rank() == 0) {
      auto data = pattern(5'000'000, 1);
      comm.isend(data.data(), data.size() * 8, 1, 1).wait();
      std::fill(data.begin(), data.end(), 0);
      comm.barrier();
    } else {
      comm.barrier();
      std::vector<int64_t> in(5'000'000);
      comm.irecv(in.data(), in.size() * 8, 0, 1).wait();
      require(in == pattern(5'000'000, 1), "the payload");
    }
  }));
}

TEST_P(CommTest, OperationsProgressWhileTheRankComputes) {
  expect_clean(run(2, [](Backend& backend) {
    Comm comm = world(backend);
    std::vector<float> data(1 << 19, 1);  // eight pieces
    SharedBuffer sent = comm.alloc(8 << 20), received = comm.alloc(8 << 20);
    std::memset(sent.data(), 5 + comm.rank(), sent.size());
    comm.barrier();
    Work reduce = comm.all_reduce(data.data(), data.size(), DType::f32);
    Work receive = comm.irecv(received.data(), received.size(), 1 - comm.rank(), 3);
    Work send = comm.isend(sent.data(), sent.size(), 1 - comm.rank(), 3);
    // Neither rank is inside the library for a while: only the progress threads can complete all of
    // it. A look does a small part of the work at most.
    std::this_thread::sleep_for(kThreadSanitizer ? 10s : 2s);
    require(reduce.done() && receive.done() && send.done(),
            "not complete after 2 s without a call");
    require(data.front() == 2 && data.back() == 2, "the sum");
    require(received.data()[received.size() - 1] == std::byte(6 - comm.rank()), "the message");
  }));
}

TEST_P(CommTest, ManyGroupsAndInterleavedOperations) {
  if (!fits(8)) GTEST_SKIP() << kTooFewRanks;
  expect_clean(run(8, [](Backend& backend) {
    int me = backend.rank();
    Comm all = world(backend);
    Comm even_odd = backend.make(me % 2 == 0 ? std::vector{0, 2, 4, 6} : std::vector{7, 5, 3, 1},
                                 fmt::format("parity{}", me % 2));
    Comm pair = backend.make({me / 2 * 2, me / 2 * 2 + 1}, fmt::format("pair{}", me / 2));
    Comm alone = backend.make({me}, fmt::format("alone{}", me));
    require(alone.size() == 1 && pair.size() == 2 &&
                even_odd.rank() == (me % 2 == 0 ? me / 2 : (7 - me) / 2),
            "places");
    for (int round = 0; round < 20; ++round) {
      std::vector<int64_t> a(100 + round * 1000, me), b(70'000, me), c(3, me), d(50, me);
      std::vector<Work> works;
      works.push_back(all.all_reduce(a.data(), a.size(), DType::i64));
      works.push_back(even_odd.all_reduce(b.data(), b.size(), DType::i64));
      works.push_back(pair.all_reduce(c.data(), c.size(), DType::i64, Reduce::max));
      works.push_back(all.broadcast(d.data(), d.size(), DType::i64, round % 8));
      works.push_back(alone.all_reduce(d.data(), 0, DType::i64));
      for (size_t i = works.size(); i-- > 0;) works[(i + round) % works.size()].wait();
      require(a.front() == 28 && a.back() == 28, "all");
      require(b.front() == (me % 2 == 0 ? 12 : 16) && b.back() == b.front(), "parity");
      require(c[2] == (me | 1), "pair");
      require(d.back() == round % 8, "broadcast");
    }
  }));
}

TEST_P(CommTest, GroupsOfOneNameFollowOneAnotherAndMemoryComesBack) {
  expect_clean(run(2, [](Backend& backend) {
    std::byte* first = nullptr;
    for (int i = 0; i < 50; ++i) {
      Comm comm = world(backend);
      std::vector<double> data(100'000, 1);
      Work unwaited = comm.all_reduce(data.data(), data.size(), DType::f64);
      comm.barrier();  // in order: the one before is complete
      require(data[5] == 2, "sum");
      SharedBuffer buffer = comm.alloc(1 << 20);
      if (i == 10) first = buffer.data();
      require(i <= 10 || buffer.data() <= first + (64 << 20), "memory of ended groups is reused");
    }
  }));
}

TEST_P(CommTest, TrafficIsCountedPerKind) {
  expect_clean(run(2, [](Backend& backend) {
    Comm comm = world(backend);
    std::vector<float> a(10), b(20);
    std::vector<int64_t> counts{4, 6};
    comm.all_reduce(a.data(), 10, DType::f32).wait();
    comm.reduce_scatter(a.data(), b.data(), counts, DType::f32).wait();
    comm.all_gather(a.data(), b.data(), counts, DType::f32).wait();
    comm.broadcast(a.data(), 5, DType::f32, 1).wait();
    comm.isend(a.data(), 12, 1 - comm.rank(), 0);
    comm.irecv(b.data(), 12, 1 - comm.rank(), 0).wait();
    Traffic traffic = comm.traffic();
    require(traffic.all_reduce == 40 && traffic.reduce_scatter == 40 && traffic.all_gather == 40,
            "collectives");
    require(traffic.broadcast == 20 && traffic.all_to_all == 0 && traffic.p2p == 12, "others");
  }));
}

TEST(Comm, AGroupOfOneIsTheIdentity) {
  Comm comm;
  float a[3] = {1, 2, 3}, b[3] = {};
  std::vector<int64_t> counts{3};
  comm.all_reduce(a, 3, DType::f32).wait();
  comm.reduce_scatter(a, b, counts, DType::f32).wait();
  EXPECT_EQ(b[2], 3);
  comm.all_gather(a, a, counts, DType::f32).wait();
  comm.broadcast(a, 3, DType::f32, 0).wait();
  comm.barrier();
  b[0] = 9;
  comm.all_to_all(a, counts, b, counts, DType::f32).wait();
  EXPECT_EQ(b[0], 1);
  EXPECT_EQ(comm.traffic().all_reduce, 0);
  SharedBuffer buffer = comm.alloc(100);
  std::memset(buffer.data(), 0, 100);
  EXPECT_THROW(comm.isend(a, 12, 0, 0), base::ConfigError);
}

TEST(Comm, WrongArgumentsAreRefused) {
  expect_clean(run_ranks(Kind::threads, 2, [](Backend& backend) {
    Comm comm = world(backend);
    float a[4] = {};
    std::vector<int64_t> one{4}, negative{5, -1};
    auto refused = [](auto call) {
      try {
        call();
      } catch (const base::ConfigError&) {
        return;
      }
      throw std::runtime_error("not refused");
    };
    refused([&] { comm.all_reduce(nullptr, 4, DType::f32); });
    refused([&] { comm.all_reduce(a, -1, DType::f32); });
    refused([&] { comm.all_gather(a, a, one, DType::f32); });
    refused([&] { comm.reduce_scatter(a, a, negative, DType::f32); });
    refused([&] { comm.broadcast(a, 4, DType::f32, 2); });
    refused([&] { comm.isend(a, 4, comm.rank(), 0); });
    refused([&] { comm.irecv(a, 4, 2, 0); });
    refused([&] { backend.make({0, 0, 1}, "twice"); });
    refused([&] { backend.make({1 - comm.rank()}, "without me"); });
  }));
}

TEST_P(CommTest, DisagreementNamesBothCalls) {
  Outcomes outcomes = run(2, [](Backend& backend) {
    Comm comm = backend.make({0, 1}, "dp");
    std::vector<float> data(20);
    comm.all_reduce(data.data(), comm.rank() == 0 ? 12 : 10, DType::f32).wait();
  });
  for (const std::string& outcome : outcomes)
    EXPECT_THAT(outcome, AllOf(HasSubstr("all_reduce of 12 fp32"),
                               HasSubstr("all_reduce of 10 fp32"), HasSubstr("'dp'")));
  outcomes = run(2, [](Backend& backend) {
    Comm comm = world(backend);
    std::vector<float> data(40);
    std::vector<int64_t> sends{2, 3}, receives{comm.rank() == 0 ? 2 : 3, 3};
    comm.all_to_all(data.data(), sends, data.data() + 20, receives, DType::f32).wait();
    comm.barrier();
  });
  EXPECT_THAT(outcomes[0], HasSubstr("rank 1 sends 2 elements, rank 0 expects 3"));
}

TEST_P(CommTest, AReceiveOfAnotherSizeIsAnError) {
  Outcomes outcomes = run(2, [](Backend& backend) {
    Comm comm = world(backend);
    char data[100] = {};
    if (comm.rank() == 0) comm.isend(data, 64, 1, 7).wait();
    if (comm.rank() == 1) comm.irecv(data, 100, 0, 7).wait();
    comm.barrier();
  });
  EXPECT_THAT(outcomes[1], AllOf(HasSubstr("receive of 100 bytes from rank 0 in group"),
                                 HasSubstr("has 64 bytes")));
  EXPECT_THAT(outcomes[0], HasSubstr("has 64 bytes"));
}

TEST_P(CommTest, ADeadlineNamesOperationGroupRankPeerAndTime) {
  Outcomes outcomes = run(
      3,
      [](Backend& backend) {
        Comm comm = backend.make({0, 1, 2}, "tp");
        float x = 1;
        if (comm.rank() == 1) std::this_thread::sleep_for(1500ms);
        comm.all_reduce(&x, 1, DType::f32).wait();
      },
      300ms);
  for (const std::string& outcome : outcomes)
    EXPECT_THAT(
        outcome,
        AllOf(HasSubstr("gave up: all_reduce of 1 fp32 in group 'tp' (ranks 0 1 2) waited 0."),
              HasSubstr("for rank 1"), HasSubstr("(timeout 0.30 s)")));
  outcomes = run(
      2,
      [](Backend& backend) {
        Comm comm = backend.make({0, 1}, "pp");
        float x = 1;
        if (comm.rank() == 0) comm.irecv(&x, 4, 1, 3).wait();
        if (comm.rank() == 1) std::this_thread::sleep_for(1500ms);
      },
      200ms);
  // The failed operation is named once.
  EXPECT_THAT(outcomes[0],
              AllOf(testing::StartsWith(
                        "rank 0 gave up: receive of 4 bytes from rank 1 in group 'pp' waited 0."),
                    testing::Not(HasSubstr(", on rank"))));
}

TEST_P(CommTest, AbortEndsPendingAndLaterOperations) {
  Outcomes outcomes = run(3, [](Backend& backend) {
    Comm comm = world(backend);
    float x = 1;
    Watch watch;
    if (comm.rank() == 2) {
      std::this_thread::sleep_for(200ms);
      backend.abort("the disk is full");
      return;
    }
    std::string pending, later;
    try {
      comm.all_reduce(&x, 1, DType::f32).wait();
    } catch (const base::CommError& error) {
      pending = error.what();
    }
    require(watch.seconds() < 1.2, "the pending operation took too long to fail");
    try {
      comm.isend(&x, 4, 1 - comm.rank(), 0).wait();
    } catch (const base::CommError& error) {
      later = error.what();
    }
    require(pending.find("rank 2 aborted: the disk is full") != std::string::npos,
            "pending: " + pending);
    require(later.find("rank 2 aborted: the disk is full") != std::string::npos, "later: " + later);
  });
  expect_clean(outcomes);
}

TEST_P(CommTest, ARankThatEndsEarlyIsNamedAtOnce) {
  Watch watch;
  Outcomes outcomes = run(3, [](Backend& backend) {
    Comm comm = world(backend);
    if (comm.rank() == 1) throw std::runtime_error("something else");
    float x = 1;
    comm.all_reduce(&x, 1, DType::f32).wait();
  });
  EXPECT_THAT(outcomes[0], HasSubstr("rank 1 ended before the operation was complete"));
  EXPECT_EQ(outcomes[1], "something else");
  EXPECT_LT(watch.seconds(), 10);
}

// The buffers of operations in flight are freed while an error unwinds; nobody may touch them after
// that.
TEST_P(CommTest, AnErrorAmidOperationsFailsTheJob) {
  for (int i = 0; i < 10; ++i) {
    Outcomes outcomes = run(3, [](Backend& backend) {
      Comm comm = world(backend);
      std::vector<float> data(1 << 18, 1);
      std::vector<Work> works;
      for (int k = 0; k < 20; ++k)
        works.push_back(comm.all_reduce(data.data(), data.size(), DType::f32, Reduce::max));
      if (comm.rank() == 1) throw std::runtime_error("out of luck");
      for (Work& work : works) work.wait();
      comm.barrier();
    });
    EXPECT_EQ(outcomes[1], "out of luck");
    EXPECT_THAT(outcomes[0],
                HasSubstr("rank 1 ended with an error while operations were in flight"));
  }
}

// Work that a rank finished before it left still counts.
TEST_P(CommTest, MessagesOfARankThatLeftArrive) {
  expect_clean(run(2, [](Backend& backend) {
    Comm comm = world(backend);
    int64_t x = 5;
    if (comm.rank() == 0) {
      comm.isend(&x, 8, 1, 1).wait();
    } else {
      std::this_thread::sleep_for(300ms);
      int64_t got = 0;
      comm.irecv(&got, 8, 0, 1).wait();
      require(got == 5, "the message");
    }
  }));
}

TEST_P(CommTest, SixteenRanksOnFewCores) {
  if (!fits(16)) GTEST_SKIP() << kTooFewRanks;
  Watch watch;
  expect_clean(run(16, [](Backend& backend) {
    Comm comm = world(backend);
    std::vector<float> small(256), large(1 << 20);
    for (int i = 0; i < 50; ++i) comm.all_reduce(small.data(), small.size(), DType::f32).wait();
    comm.all_reduce(large.data(), large.size(), DType::f32).wait();
    comm.barrier();
  }));
  EXPECT_LT(watch.seconds(), 20);
}

}  // namespace
}  // namespace trireme::comm
