// Ranks that are killed: the others end at once and name them, and nothing is left.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "tests/ranks/comm_support.h"
#include "trireme/base/error.h"
#include "trireme/comm/backends/shm.h"

namespace trireme::comm {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

int64_t descriptors() {
  std::filesystem::directory_iterator open("/proc/self/fd");
  return std::distance(begin(open), end(open));
}

TEST(Faults, AKilledRankIsNamedWithinASecondWhateverItDid) {
  if (kThreadSanitizer || under_mpirun()) GTEST_SKIP() << kNoFork;
  int64_t open = descriptors();
  for (int victim : {0, 2}) {
    for (int moment : {0, 3, 17}) {  // milliseconds into the work
      Outcomes outcomes = run_ranks(
          Kind::processes, 4,
          [&](Backend& backend) {
            Comm comm = world(backend);
            Comm half =
                backend.make(comm.rank() < 2 ? std::vector{0, 1} : std::vector{2, 3}, "half");
            comm.barrier();
            if (comm.rank() == victim)
              std::thread([&] {
                std::this_thread::sleep_for(milliseconds(moment));
                ::kill(::getpid(), SIGKILL);
              }).detach();
            Watch watch;
            try {
              std::vector<float> data(300'000);
              SharedBuffer buffer = comm.alloc(1 << 20);
              for (;;) {
                comm.all_reduce(data.data(), data.size(), DType::f32).wait();
                comm.isend(buffer.data(), buffer.size(), (comm.rank() + 1) % 4, 1);
                comm.irecv(data.data(), buffer.size(), (comm.rank() + 3) % 4, 1).wait();
                half.all_reduce(buffer.data(), 1 << 18, DType::f32).wait();
              }
            } catch (const base::CommError&) {
              require(watch.seconds() < 2, "took too long");
              throw;
            }
          },
          600s);
      for (int r = 0; r < 4; ++r) {
        if (r == victim)
          EXPECT_EQ(outcomes[r], "signal 9");
        else
          EXPECT_THAT(outcomes[r], HasSubstr(fmt::format("rank {} died", victim)));
      }
    }
  }
  EXPECT_EQ(descriptors(), open);
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
    EXPECT_THAT(entry.path().string(), testing::Not(HasSubstr("trireme")));
}

TEST(Faults, ARankThatNeverConnectsIsNamed) {
  StoreServer server;
  server.serve();
  auto store = connect_store(server.address());
  try {
    make_shm_backend(0, 3, *store, 200ms);
    FAIL();
  } catch (const base::CommError& error) {
    EXPECT_THAT(error.what(), HasSubstr("ranks 1 2"));
  }
}

TEST(Faults, RanksThatDisagreeOnTheirNumberAreRefused) {
  StoreServer server;
  server.serve();
  std::string other;
  std::thread second([&] {
    try {
      auto store = connect_store(server.address());
      make_shm_backend(1, 3, *store, 2s);
    } catch (const base::CommError& error) {
      other = error.what();
    }
  });
  auto store = connect_store(server.address());
  make_shm_backend(0, 2, *store, 2s);
  second.join();
  EXPECT_THAT(other, HasSubstr("differ in WORLD_SIZE"));
}

TEST(Store, KeysCountersAndDeadlines) {
  StoreServer server;
  auto early = connect_store(server.address());  // before it serves
  server.serve();
  auto late = connect_store(server.address());
  early->set("a key with spaces", "value\n\0x");
  EXPECT_EQ(late->get("a key with spaces", 1s), "value\n\0x");
  EXPECT_EQ(early->add("n", 3), 3);
  EXPECT_EQ(late->add("n", 4), 7);
  EXPECT_THROW(late->get("missing", 50ms), base::CommError);
  std::thread setter([&] {
    std::this_thread::sleep_for(50ms);
    early->set("soon", "1");
  });
  EXPECT_EQ(late->get("soon", 5s), "1");
  setter.join();
  EXPECT_THROW(connect_store("@nobody-listens-here"), base::CommError);
  MemoryStore memory;
  EXPECT_EQ(memory.add("n", 1), 1);
  EXPECT_THROW(memory.get("missing", 10ms), base::CommError);
}

}  // namespace
}  // namespace trireme::comm
